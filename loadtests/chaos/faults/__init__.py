"""What can go wrong, one module for each place in which it does."""
