"""Sources that a manifest describes: HTTP APIs, read as low-code connectors read them.

Sources: `seeds/incremental-syncs.txt`, `specs/airbyte-declarative.md`.
"""
