"""The commands that call a server and need nothing but the client."""
