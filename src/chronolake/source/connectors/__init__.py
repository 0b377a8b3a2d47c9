"""Connectors: programs of their own that report records, in environments of their own."""
