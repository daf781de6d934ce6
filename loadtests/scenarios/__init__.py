"""Scenarios: capacity, overload and the stress scenarios."""
