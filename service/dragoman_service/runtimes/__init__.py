"""Execution of the networks of a bundle: ONNX Runtime on CPU and CUDA, and the native C++ engine."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # must be set before ONNX Runtime is imported
