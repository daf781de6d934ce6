"""The ONNX Runtime edge: sessions, the step model over the two graphs, cache buffers."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # from its import on, ONNX Runtime reports to its maker otherwise
