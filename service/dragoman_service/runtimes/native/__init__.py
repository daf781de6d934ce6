"""Step models on the native C++ engine."""
