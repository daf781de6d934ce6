"""How a graph multiplies by weights; one class per precision."""

from typing import Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.onnx_export.write import GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS, FloatType

FloatArray = NDArray[np.float32]


class Arithmetic(Protocol):
    """Weight products and embedding tables, which lookup and projection may share.

    Weights have PyTorch's layout, [outputs, inputs]; each name is stored once per graph.
    """

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
        """Return states [..., inputs] times the transposed weight [outputs, inputs] plus bias [outputs].

        With `rectifies` negative states count as zero (ReLU). `name` is the path of the first projection and a suffix.
        """

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Return the rows [..., d_model] of table [V, d_model] for token ids [...], times a factor."""

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Return float32 logits [..., V] of states [..., d_model]; `lookup` may share the table [V, d_model].

        `bias` [V] is stored as `PROJECTION_BIAS`.
        """


class Float32:
    """32-bit floats, as PyTorch computes."""

    _float_type: FloatType = "float32"

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
        """Multiply in the float type of the class."""
        entered = graph.op("Relu", states) if rectifies else states
        product = graph.op("MatMul", entered, self._stored(graph, f"{name}.weight", weight.T))
        return graph.op("Add", product, self._stored(graph, f"{name}.bias", bias))

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather rows of the float table."""
        rows = graph.op("Gather", self._stored(graph, name, table), token_ids)
        return rows if factor == 1 else graph.op("Mul", rows, graph.scalar(factor, self._float_type))

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the table; ONNX Runtime transposes it once, at load time."""
        logits = graph.op("MatMul", states, graph.op("Transpose", self._stored(graph, name, table), perm=[1, 0]))
        return logits if bias is None else graph.op("Add", logits, self._stored(graph, PROJECTION_BIAS, bias))

    def _stored(self, graph: GraphBuilder, name: str, array: FloatArray) -> ir.Value:
        return graph.constant(name, array.astype(self._float_type))


class Float16(Float32):
    """Weights and states in 16-bit floats, logits in 32-bit floats."""

    _float_type = "float16"

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the table and cast the logits to float32."""
        return graph.op("Cast", super().project(graph, states, name, table, bias), to=ir.DataType.FLOAT)
