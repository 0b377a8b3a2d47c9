"""Shared code of tests/tester."""
