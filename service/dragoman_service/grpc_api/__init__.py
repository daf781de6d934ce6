"""The gRPC edge: methods, messages, statuses, interceptors, health; knows nothing of ONNX Runtime."""
