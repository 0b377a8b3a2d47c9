"""Shared code of tests/crash."""
