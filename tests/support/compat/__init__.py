"""Shared code of tests/compat."""
