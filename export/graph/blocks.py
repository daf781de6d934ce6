"""The parts encoder and decoder graphs share: embedding, normalisation, projections, feed-forward."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.graph.arithmetic import Arithmetic, FloatArray
from export.graph.write import GraphBuilder
from export.model.config import ModelConfig
from export.model.layers import sinusoidal_positions
from service.bundle import FloatType

_EPSILON = 1e-5
"""Added to the variance by PyTorch's LayerNorm unless told otherwise."""

_PARTS = ("weight", "bias")

EMBEDDING = "embedding.weight"
"""Name of the embedding table, in the checkpoint and in the graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWriter:
    """Writes blocks of one network into one graph."""

    graph: GraphBuilder
    config: ModelConfig
    weights: Mapping[str, FloatArray]
    """By the names of the checkpoint."""
    arithmetic: Arithmetic
    float_type: FloatType
    """Of the states that the arithmetic takes and gives."""

    def embed(self, token_ids: ir.Value, positions: ir.Value) -> ir.Value:
        """Return the embeddings [..., d_model] of token ids [...], scaled, plus position encodings of that shape."""
        factor = math.sqrt(self.config.d_model)
        rows = self.arithmetic.lookup(self.graph, token_ids, EMBEDDING, self.weights[EMBEDDING], factor=factor)
        return self.graph.op("Add", rows, positions)

    def position_table(self, max_tokens: int) -> ir.Value:
        """Return the position encodings [max_tokens, d_model], stored."""
        return self._stored("position_encodings", sinusoidal_positions(max_tokens, self.config.d_model).numpy())

    def scalar(self, value: float) -> ir.Value:
        """Return a stored scalar of the states' type."""
        return self.graph.scalar(value, self.float_type)

    def project(self, states: ir.Value) -> ir.Value:
        """Return float32 logits [..., V]."""
        return self.arithmetic.project(self.graph, states, EMBEDDING, self.weights[EMBEDDING])

    def norm(self, states: ir.Value, path: str) -> ir.Value:
        """Layer-normalise the last axis with the weight and bias of a path; mean and variance are float32."""
        scale, bias = (self._stored(f"{path}.{part}", self.weights[f"{path}.{part}"]) for part in _PARTS)
        return self.graph.op("LayerNormalization", states, scale, bias, epsilon=_EPSILON)

    def final_norm(self, states: ir.Value, stack: str) -> ir.Value:
        """Normalise the output of a stack, which pre-norm does and post-norm has done."""
        return self.norm(states, f"{stack}.norm") if self.config.norm == "pre" else states

    def residual(self, states: ir.Value, path: str, sublayer: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Add the output of a sublayer to the stream, normalising before it or after the sum."""
        # Add and LayerNormalization stay apart: the CPU kernel of SkipLayerNormalization is several times slower.
        if self.config.norm == "pre":
            return self.graph.op("Add", states, sublayer(self.norm(states, path)))
        return self.norm(self.graph.op("Add", states, sublayer(states)), path)

    def linear(self, states: ir.Value, paths: Sequence[str], *, rectifies: bool = False) -> ir.Value:
        """Multiply by the weights of all paths at once, their outputs side by side, and add their biases."""
        name = paths[0] if len(paths) == 1 else f"{paths[0]}.fused"
        weight, bias = (np.concatenate([self.weights[f"{path}.{part}"] for path in paths]) for part in _PARTS)
        return self.arithmetic.linear(self.graph, states, name, weight, bias, rectifies=rectifies)

    def feed_forward(self, states: ir.Value, path: str) -> ir.Value:
        """max(0, x W1 + b1) W2 + b2."""
        with self.graph.scope("feed_forward"):
            return self.linear(self.linear(states, [f"{path}.inner"]), [f"{path}.outer"], rectifies=True)

    def _stored(self, name: str, array: FloatArray) -> ir.Value:
        """Return an array as a constant of the states' type."""
        return self.graph.constant(name, array.astype(self.float_type))
