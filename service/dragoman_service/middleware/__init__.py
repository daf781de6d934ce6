"""Request pipeline shared by gRPC and HTTP: call record, error mapping, flow control."""
