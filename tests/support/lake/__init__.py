"""Shared code of tests/lake."""
