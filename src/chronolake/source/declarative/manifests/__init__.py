"""Manifests: parsing of the YAML file, validation, and capabilities of the streams."""
