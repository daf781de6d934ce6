"""Generated texts with parts that a translation must preserve, and a check of the translations."""
