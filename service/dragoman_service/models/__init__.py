"""Which models there are and which of them answers a request: load, swap, label, unload."""
