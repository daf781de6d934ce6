"""Who is decoded with whom, and when: admission, batching and the decoding threads."""
