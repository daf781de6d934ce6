"""Step models on ONNX Runtime for CUDA, with tensors that stay on the device."""
