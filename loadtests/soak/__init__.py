"""Everything at once for a long time: nothing leaks, nothing is lost, every request is answered exactly once."""
