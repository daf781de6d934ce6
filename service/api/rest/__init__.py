"""HTTP beside gRPC: the port with metrics and probes, in the server's event loop."""
