"""The pages: a module each, with its `ROUTES`, and what its templates are given."""
