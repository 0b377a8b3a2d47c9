"""Records: decoding, extraction, filtering, transformation and type conversion."""
