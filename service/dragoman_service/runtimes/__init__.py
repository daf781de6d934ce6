"""The ONNX Runtime edge: sessions, the step model over the graphs of a bundle, cache buffers."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise ONNX Runtime sends telemetry as soon as it is imported
