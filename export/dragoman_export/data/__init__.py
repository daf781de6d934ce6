"""Parallel text on its way to the trainer: reading, the vocabulary, length-bucketed token batches."""
