"""Shared code of tests/declarative/mockapi."""
