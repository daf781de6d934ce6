"""Serves model bundles: the gRPC translation server and everything beneath it."""

import os

# Must be set before gRPC is imported. gRPC writes a line of plain text to standard error for each failed TLS handshake.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
