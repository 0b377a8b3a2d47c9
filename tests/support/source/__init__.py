"""Shared code of tests/source."""
