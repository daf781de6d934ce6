"""Translates with exported models, and compares them with their checkpoints."""
