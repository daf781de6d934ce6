"""What runs within the server under test, put there by Python's own `sitecustomize`, not by the server."""
