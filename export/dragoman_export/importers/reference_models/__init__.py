"""Imported models run by their own libraries, as a reference for `verify`."""
