"""Weight products of a graph; one class per precision."""

from typing import NamedTuple, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.onnx_export.write import GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS, FloatType

FloatArray = NDArray[np.float32]


class Weights(NamedTuple):
    """Weights of a product or table in PyTorch's layout; each name is stored once per graph."""

    name: str
    matrix: FloatArray  # [outputs, inputs]; [V, d_model] of a table
    bias: FloatArray | None = None  # [outputs]


class Arithmetic(Protocol):
    """Weight products and embedding tables, which lookup and projection may share."""

    def linear(self, graph: GraphBuilder, states: ir.Value, layer: Weights, *, rectifies: bool = False) -> ir.Value:
        """Return states [..., inputs] times the weights, plus bias; `rectifies`: negative states count as zero."""

    def lookup(self, graph: GraphBuilder, token_ids: ir.Value, table: Weights, *, factor: float) -> ir.Value:
        """Return the rows [..., d_model] of a table for token ids [...], times a factor."""

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Return float32 logits [..., V] of states [..., d_model]; the bias is stored as `PROJECTION_BIAS`."""


class Float32:
    """32-bit floats, as PyTorch computes."""

    _float_type: FloatType = "float32"

    def linear(self, graph: GraphBuilder, states: ir.Value, layer: Weights, *, rectifies: bool = False) -> ir.Value:
        """Multiply in the float type of the class."""
        entered = graph.op("Relu", states) if rectifies else states
        product = graph.op("MatMul", entered, self._stored(graph, f"{layer.name}.weight", layer.matrix.T))
        return (
            product
            if layer.bias is None
            else graph.op("Add", product, self._stored(graph, f"{layer.name}.bias", layer.bias))
        )

    def lookup(self, graph: GraphBuilder, token_ids: ir.Value, table: Weights, *, factor: float) -> ir.Value:
        """Gather rows of the float table."""
        rows = graph.op("Gather", self._stored(graph, table.name, table.matrix), token_ids)
        return rows if factor == 1 else graph.op("Mul", rows, graph.scalar(factor, self._float_type))

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Multiply by the table; ONNX Runtime transposes it once, at load time."""
        stored = self._stored(graph, table.name, table.matrix)
        logits = graph.op("MatMul", states, graph.op("Transpose", stored, perm=[1, 0]))
        if table.bias is None:
            return logits
        return graph.op("Add", logits, self._stored(graph, PROJECTION_BIAS, table.bias))

    def _stored(self, graph: GraphBuilder, name: str, array: FloatArray) -> ir.Value:
        return graph.constant(name, array.astype(self._float_type))


class Float16(Float32):
    """Weights and states in 16-bit floats, logits in 32-bit floats."""

    _float_type = "float16"

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Multiply by the table and cast the logits to float32."""
        return graph.op("Cast", super().project(graph, states, table), to=ir.DataType.FLOAT)
