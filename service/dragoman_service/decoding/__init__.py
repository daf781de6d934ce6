"""Beam search and sampling in NumPy: no I/O, no clock, no threads, no metrics."""
