"""The HTTP server: the API as JSON, metrics, probes and the playground."""
