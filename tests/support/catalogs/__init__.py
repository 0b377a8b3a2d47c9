"""A real REST catalog for tests, and projects that use it."""
