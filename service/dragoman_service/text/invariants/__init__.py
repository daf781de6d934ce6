"""Invariants: properties of a source that its translation must preserve."""
