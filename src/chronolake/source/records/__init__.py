"""Records that sources read one by one: their columns, keys and pending files."""
