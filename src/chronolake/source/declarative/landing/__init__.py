"""Records on their way into the raw lake: their columns, their key, files that wait."""
