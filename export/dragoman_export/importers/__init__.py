"""Makes checkpoints of models that exist in another format, one module a format."""
