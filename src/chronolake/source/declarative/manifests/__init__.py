"""Manifests: parsing of the YAML file, validation, and the streams that it describes."""
