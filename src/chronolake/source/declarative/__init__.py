"""Declarative sources: HTTP APIs described by low-code manifests.

Sources: `seeds/incremental-syncs.txt`, `specs/airbyte-declarative.md`.
"""
