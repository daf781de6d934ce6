"""Protected text: recognition, replacement by placeholders, and restoration."""
