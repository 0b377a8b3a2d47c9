"""The pages of the web UI: one module each, with its `ROUTES` and its templates' context."""
