"""Step batches on ONNX Runtime for CUDA; all tensors stay on the device."""
