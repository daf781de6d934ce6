"""Models: registry, loading, swapping, labels, unloading, glossaries."""
