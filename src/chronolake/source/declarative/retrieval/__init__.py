"""Retrieval: pagination, async jobs, and splitting of pages and slices."""
