"""Shared code of tests/server."""
