"""One fault after the other is done to a running server; whoever is not hit must not notice, and it must recover."""
