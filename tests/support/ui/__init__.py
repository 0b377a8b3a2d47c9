"""Shared code of tests/ui."""
