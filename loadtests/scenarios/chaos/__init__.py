"""One fault after another is injected into a running server; other callers must not notice, and it must recover."""
