"""Comparison with other translation systems."""
