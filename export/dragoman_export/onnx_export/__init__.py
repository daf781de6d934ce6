"""The two ONNX graphs of a bundle, built node by node from the weights of a checkpoint."""
