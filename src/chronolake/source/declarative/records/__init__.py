"""Records: extraction, filtering, transformation and type conversion."""
