"""Thousands of malformed and extreme inputs: each gets the right status, and other callers are not affected."""
