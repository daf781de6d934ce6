"""Scenarios: load, capacity, overload, transports and the stress scenarios."""
