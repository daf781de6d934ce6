"""16-bit floats: half the bytes of weights and caches, for a GPU, where a step is mostly the reading of them.

What is added up is added up in 32 bits: ONNX Runtime's CUDA provider multiplies matrices of halves with float32 sums
unless told otherwise, and LayerNormalization takes mean and variance in float32, which is the operator's default. What
goes from one operator to the next is rounded to halves, except from the logits on: their softmax is taken in float32.
The CPU provider multiplies no halves on most machines: it casts to float32 and back around its products, which is
right, and slower than fp32.
"""

import numpy as np
import onnx_ir as ir

from export.graph.arithmetic import FloatArray
from export.graph.write import GraphBuilder


class Float16:
    """Weights and states in 16-bit floats, logits in 32-bit ones."""

    def linear(
        self,
        graph: GraphBuilder,
        states: ir.Value,
        name: str,
        weight: FloatArray,
        bias: FloatArray,
        *,
        rectifies: bool = False,
    ) -> ir.Value:
        """Multiply float16 states."""
        entered = graph.op("Relu", states) if rectifies else states
        product = graph.op("MatMul", entered, graph.constant(f"{name}.weight", weight.T.astype(np.float16)))
        return graph.op("Add", product, graph.constant(f"{name}.bias", bias.astype(np.float16)))

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather rows of the float16 table."""
        rows = graph.op("Gather", graph.constant(name, table.astype(np.float16)), token_ids)
        return graph.op("Mul", rows, graph.scalar(factor, "float16"))

    def project(self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray) -> ir.Value:
        """Multiply by the table and give what comes out as float32."""
        transposed = graph.op("Transpose", graph.constant(name, table.astype(np.float16)), perm=[1, 0])
        return graph.op("Cast", graph.op("MatMul", states, transposed), to=ir.DataType.FLOAT)
