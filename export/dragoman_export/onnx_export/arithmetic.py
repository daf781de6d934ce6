"""How a graph multiplies by weights, which is what makes its precision."""

from typing import Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.onnx_export.write import GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS, FloatType

FloatArray = NDArray[np.float32]


class Arithmetic(Protocol):
    """Products with weights, and tables of embeddings, which may serve for lookup and projection alike.

    Weights are given as PyTorch stores them, [outputs, inputs]; a name is stored once in a graph.
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
        """Return states [..., inputs] times the transposed weight plus bias.

        Args:
            graph: where nodes and weights go.
            states: [..., inputs].
            name: of the weights in the graph: the path of the first projection that they belong to, and what follows.
            weight: [outputs, inputs].
            bias: [outputs].
            rectifies: negative states count as zero (ReLU).
        """

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Return the rows [..., d_model] of table [V, d_model] for token ids [...], times a factor."""

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Return float32 logits [..., V]: states [..., d_model] times a transposed table, which `lookup` may read, too.

        Args:
            graph: where nodes and weights go.
            states: [..., d_model].
            name: of the table in the graph.
            table: [V, d_model].
            bias: [V], added; stored as `PROJECTION_BIAS`.
        """


class Float32:
    """Everything in 32-bit floats, as PyTorch computes it."""

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
        """Multiply in floats of the type."""
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
        """Multiply by the table; ONNX Runtime transposes it once, when it loads the graph."""
        logits = graph.op("MatMul", states, graph.op("Transpose", self._stored(graph, name, table), perm=[1, 0]))
        return logits if bias is None else graph.op("Add", logits, self._stored(graph, PROJECTION_BIAS, bias))

    def _stored(self, graph: GraphBuilder, name: str, array: FloatArray) -> ir.Value:
        return graph.constant(name, array.astype(self._float_type))


class Float16(Float32):
    """As `Float32`, with weights and states in 16-bit floats; logits stay 32-bit ones."""

    _float_type = "float16"

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the table and give what comes out as float32."""
        return graph.op("Cast", super().project(graph, states, name, table, bias), to=ir.DataType.FLOAT)
