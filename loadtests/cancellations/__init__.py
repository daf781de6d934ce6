"""Tens of thousands of calls whose callers leave at any moment: nothing is left behind, memory stays flat."""
