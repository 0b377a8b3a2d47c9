"""Manifests: what a file says, what is wrong with it, which streams it describes."""
