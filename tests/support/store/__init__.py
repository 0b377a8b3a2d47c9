"""A real S3 server for tests, and failures between it and its clients."""
