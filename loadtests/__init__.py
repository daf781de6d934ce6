"""Judges speed: the server under load, and the same work on other systems."""
