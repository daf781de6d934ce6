"""Step models on ONNX Runtime for CPUs."""
