"""Translating files: each format says what is text in it, one job translates all of that and writes the file again."""
