"""The ONNX Runtime edge: sessions, the step model over the two graphs, cache buffers."""
