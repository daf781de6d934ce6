"""Uploaded documents: files that callers upload, have translated and download again; settings and stored state."""
