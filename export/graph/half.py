"""16-bit floats: half the bytes of weights and caches, for a GPU, where a step is mostly the reading of them.

What is added up is added up in 32 bits: ONNX Runtime's CUDA provider multiplies matrices of halves with float32 sums
unless told otherwise, and LayerNormalization takes mean and variance in float32, which is the operator's default. What
goes from one operator to the next is rounded to halves, except from the logits on: their softmax is taken in float32.
The CPU provider multiplies no halves on most machines: it casts to float32 and back around its products, which is
right, and slower than fp32.
"""

import onnx_ir as ir

from export.graph.arithmetic import Float32, FloatArray
from export.graph.write import GraphBuilder


class Float16(Float32):
    """As `Float32`, with weights and states in 16-bit floats; logits stay 32-bit ones."""

    _float_type = "float16"

    def project(self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray) -> ir.Value:
        """Multiply by the table and give what comes out as float32."""
        return graph.op("Cast", super().project(graph, states, name, table), to=ir.DataType.FLOAT)
