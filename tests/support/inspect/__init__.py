"""Shared code of tests/inspect."""
