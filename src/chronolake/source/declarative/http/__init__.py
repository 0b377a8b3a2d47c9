"""HTTP client: authentication, rate limits, error handling, retries and response caching."""
