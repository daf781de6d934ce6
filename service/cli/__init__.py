"""The commands of `python -m service`: the server, and the caller's side of the wire."""
