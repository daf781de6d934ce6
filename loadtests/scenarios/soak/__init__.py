"""Everything at once for half an hour: nothing leaks and nothing is lost."""
