"""Beam search in numpy: no I/O, no clock, no threads, no metrics."""
