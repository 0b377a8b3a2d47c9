"""Shared code of tests/declarative."""
