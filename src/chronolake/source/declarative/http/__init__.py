"""HTTP client: authentication, rate limits, error handling, retries, caching and decoding."""
