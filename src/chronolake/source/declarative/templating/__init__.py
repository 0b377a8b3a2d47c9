"""Sandboxed templates of manifests, and parsing of times in manifests and responses."""
