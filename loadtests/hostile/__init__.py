"""Hostile inputs, shared by the stress scenarios and the fuzz tests."""
