"""The decode process and its supervisor."""
