"""The commands of `dragoman` that belong to the server: it, and the caller's side of the wire."""
