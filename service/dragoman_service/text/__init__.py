"""Text to token ids and back: sentence segmentation that loses nothing, and the tokenizer."""
