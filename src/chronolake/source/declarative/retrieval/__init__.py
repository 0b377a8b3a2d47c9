"""The pages of a slice, however the API wants them to be asked for."""
