"""Retrieval: pagination, async jobs, schema loaders, and splitting of pages and slices."""
