"""The worker process that decodes batches, its supervisor, and the messages between them."""
