"""The components of a manifest, as data: one model for each, with the manifest's own names."""
