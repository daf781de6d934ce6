"""The gRPC server: methods, streams, health."""
