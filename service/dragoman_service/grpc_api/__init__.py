"""The gRPC server: methods, interceptors, streams, health."""
