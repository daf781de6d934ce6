"""Decoding in processes of its own: the batches in them, and how the server reaches these."""
