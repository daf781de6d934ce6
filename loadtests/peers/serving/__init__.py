"""A server over another system, as engineers usually build one: grpc.aio, dynamic batching, a thread for each batch."""
