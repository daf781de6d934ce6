"""How a graph multiplies by weights: the one thing in which fp32 and int8 graphs differ."""

from typing import Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.graph.write import GraphBuilder

FloatArray = NDArray[np.float32]


class Arithmetic(Protocol):
    """Products with weights, and the embedding table that serves for lookup and projection alike.

    Weights are given as PyTorch stores them, [outputs, inputs]; a name is stored once in a graph.
    """

    def linear(
        self, graph: GraphBuilder, states: ir.Value, name: str, weight: FloatArray, *, is_nonnegative: bool = False
    ) -> ir.Value:
        """Return states [..., inputs] times the transposed weight, without bias.

        Args:
            graph: where nodes and weights go.
            states: float32 [..., inputs].
            name: of the weight in the graph.
            weight: [outputs, inputs].
            is_nonnegative: no element of `states` is below zero, as after a ReLU.
        """

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Return the rows [..., d_model] of table [V, d_model] for token ids [...], times a factor."""

    def project(self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray) -> ir.Value:
        """Return logits [..., V]: states [..., d_model] times the transposed table that `lookup` reads."""


class Float32:
    """Everything in 32-bit floats, as PyTorch computes it."""

    def linear(
        self,
        graph: GraphBuilder,
        states: ir.Value,
        name: str,
        weight: FloatArray,
        *,
        is_nonnegative: bool = False,  # noqa: ARG002 (of use to others)
    ) -> ir.Value:
        """Multiply in float32."""
        return graph.op("MatMul", states, graph.constant(name, weight.T))

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather rows of the float table."""
        rows = graph.op("Gather", graph.constant(name, table), token_ids)
        return graph.op("Mul", rows, graph.scalar(factor))

    def project(self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray) -> ir.Value:
        """Multiply by the table; ONNX Runtime transposes it once, when it loads the graph."""
        return graph.op("MatMul", states, graph.op("Transpose", graph.constant(name, table), perm=[1, 0]))
