"""HTTP beside gRPC, in the server's event loop: the contract as JSON, metrics and probes."""
