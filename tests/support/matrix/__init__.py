"""Lakes in every kind of store, and sources of every kind, for `tests/matrix`."""
