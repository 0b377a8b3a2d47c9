"""Pydantic models of a manifest's components, with the manifest's own names."""
