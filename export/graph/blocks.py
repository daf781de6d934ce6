"""The parts that all graphs share: embedding, normalisation, projections, and the layer, which is written here only."""

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

AttendSelf = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]
"""Attention to the sequence itself: query, key and value [..., d_model] to a sum of values [..., d_model]."""

AttendCross = Callable[[ir.Value], ir.Value]
"""Attention to the source, whose keys and values it has: query [..., d_model] to a sum of values [..., d_model]."""

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

    def layer(
        self, states: ir.Value, path: str, *, attend_self: AttendSelf, attend_cross: AttendCross | None = None
    ) -> ir.Value:
        """Write a layer: self-attention, cross-attention if it is one of the decoder, feed-forward, each residual.

        Args:
            states: [..., d_model].
            path: of its weights, and of its nodes in the graph.
            attend_self: makes a weighted sum of values, given query, key and value.
            attend_cross: the same, given the query; None: a layer of the encoder.
        """
        with self.graph.scope(path):
            states = self.self_attention(states, path, attend_self)
            if attend_cross is not None:
                states = self._residual(
                    states,
                    f"{path}.cross_attention",
                    lambda entered, own: self.cross_attention(entered, own, attend_cross),
                )
            return self._residual(states, f"{path}.feed_forward", self._feed_forward)

    def self_attention(self, states: ir.Value, path: str, attend: AttendSelf) -> ir.Value:
        """Write the first part of a layer, its residual connection included."""

        def attended(entered: ir.Value, own: str) -> ir.Value:
            with self.graph.scope("self_attention"):
                joined = self.linear(entered, [f"{own}.{part}" for part in ("query", "key", "value")])
                query, key, value = self.graph.split(joined, 3)
                return self.linear(attend(query, key, value), [f"{own}.output"])

        return self._residual(states, f"{path}.self_attention", attended)

    def cross_attention(self, entered: ir.Value, path: str, attend: AttendCross) -> ir.Value:
        """Write cross-attention without its residual connection."""
        with self.graph.scope("cross_attention"):
            query = self.linear(entered, [f"{path}.query"])
            return self.linear(attend(query), [f"{path}.output"])

    def entered(self, states: ir.Value, path: str) -> ir.Value:
        """Return what a sublayer takes of the stream: pre-norm normalises it, with the weights beside `path`."""
        return self.norm(states, f"{path}_norm") if self.config.norm == "pre" else states

    def _residual(self, states: ir.Value, path: str, sublayer: Callable[[ir.Value, str], ir.Value]) -> ir.Value:
        """Add the output of a sublayer to the stream; post-norm normalises the sum."""
        # Add and LayerNormalization stay apart: the CPU kernel of SkipLayerNormalization is several times slower.
        total = self.graph.op("Add", states, sublayer(self.entered(states, path), path))
        return total if self.config.norm == "pre" else self.norm(total, f"{path}_norm")

    def linear(self, states: ir.Value, paths: Sequence[str], *, rectifies: bool = False) -> ir.Value:
        """Multiply by the weights of all paths at once, their outputs side by side, and add their biases."""
        name = paths[0] if len(paths) == 1 else f"{paths[0]}.fused"
        weight, bias = (np.concatenate([self.weights[f"{path}.{part}"] for path in paths]) for part in _PARTS)
        return self.arithmetic.linear(self.graph, states, name, weight, bias, rectifies=rectifies)

    def _feed_forward(self, states: ir.Value, path: str) -> ir.Value:
        """max(0, x W1 + b1) W2 + b2."""
        with self.graph.scope("feed_forward"):
            return self.linear(self.linear(states, [f"{path}.inner"]), [f"{path}.outer"], rectifies=True)

    def _stored(self, name: str, array: FloatArray) -> ir.Value:
        """Return an array as a constant of the states' type."""
        return self.graph.constant(name, array.astype(self.float_type))
