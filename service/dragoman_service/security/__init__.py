"""Authentication, API keys, JWT, TLS, rate limits and quotas."""
