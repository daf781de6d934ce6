"""The parts encoder and decoder graphs share: embedding, normalisation, projections, feed-forward."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.graph.arithmetic import Arithmetic, FloatArray
from export.graph.write import GraphBuilder
from export.model.config import ModelConfig

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

    def embed(self, token_ids: ir.Value, positions: ir.Value) -> ir.Value:
        """Return the embeddings [..., d_model] of token ids [...], scaled, plus position encodings of that shape."""
        factor = math.sqrt(self.config.d_model)
        rows = self.arithmetic.lookup(self.graph, token_ids, EMBEDDING, self.weights[EMBEDDING], factor=factor)
        return self.graph.op("Add", rows, positions)

    def project(self, states: ir.Value) -> ir.Value:
        """Return logits [..., V]."""
        return self.arithmetic.project(self.graph, states, EMBEDDING, self.weights[EMBEDDING])

    def norm(self, states: ir.Value, path: str) -> ir.Value:
        """Layer-normalise the last axis with the weight and bias of a path."""
        scale, bias = (self.graph.constant(f"{path}.{part}", self.weights[f"{path}.{part}"]) for part in _PARTS)
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

    def linear(self, states: ir.Value, paths: Sequence[str], *, is_nonnegative: bool = False) -> ir.Value:
        """Multiply by the weights of all paths at once, their outputs side by side, and add their biases."""
        name = paths[0] if len(paths) == 1 else f"{paths[0]}.fused"
        weight, bias = (np.concatenate([self.weights[f"{path}.{part}"] for path in paths]) for part in _PARTS)
        product = self.arithmetic.linear(self.graph, states, f"{name}.weight", weight, is_nonnegative=is_nonnegative)
        return self.graph.op("Add", product, self.graph.constant(f"{name}.bias", bias))

    def feed_forward(self, states: ir.Value, path: str) -> ir.Value:
        """max(0, x W1 + b1) W2 + b2."""
        with self.graph.scope("feed_forward"):
            hidden = self.graph.op("Relu", self.linear(states, [f"{path}.inner"]))
            return self.linear(hidden, [f"{path}.outer"], is_nonnegative=True)
