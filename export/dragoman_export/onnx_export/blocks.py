"""Parts shared by all graphs: embedding, normalisation, projections and the Transformer layer.

Grouped-query attention has fewer heads of keys and values than of queries; query head h uses head h modulo their
number. A reshape turns the heads of one query into G queries in a row, each with as many heads as the keys, without a
copy; attention treats them as more positions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from dragoman_export.model.config import ModelConfig
from dragoman_export.model.positions import rotary_positions, sinusoidal_positions
from dragoman_export.onnx_export.arithmetic import Arithmetic, FloatArray, Weights
from dragoman_export.onnx_export.write import GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS, FloatType

_PARTS = ("weight", "bias")

# self-attention: query, key and value [B, T, heads * D] to a weighted sum of values [B, T, H * D]
AttendSelf = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]
# cross-attention with bound keys and values: query [B, T, H * D] to a weighted sum of values of that shape
AttendCross = Callable[[ir.Value], ir.Value]
# SSRU: forget gate and (1 - gate) times the projected input, both [B, T, d_model], to the cells
Recur = Callable[[ir.Value, ir.Value], ir.Value]
# states [B, T, d_model] and path of a layer to the states after self-attention or recurrence
FirstPart = Callable[[ir.Value, str], ir.Value]
# takes a function that stores a table of positions; returns its rows at the positions of a stack's states
PickRows = Callable[[Callable[[], ir.Value]], ir.Value]
Stack = Literal["encoder", "decoder"]

# target embedding table, possibly shared with the source; same name in checkpoint and graphs
EMBEDDING = "embedding.weight"
SOURCE_EMBEDDING = "encoder.embedding.weight"  # embedding table of the source, if separate
PROJECTION = "projection.weight"  # table of the output projection, if separate


# configuration, weights by the names of the checkpoint, arithmetic, and type of the states
NetworkParts = tuple[ModelConfig, Mapping[str, FloatArray], Arithmetic, FloatType]


def projection_table(config: ModelConfig) -> str:
    """Return the name of the table that computes the logits."""
    return PROJECTION if config.tied_embeddings == "none" else EMBEDDING


@dataclass(frozen=True, slots=True)
class NetworkWriter:
    """Writes blocks of one network into one graph."""

    graph: GraphBuilder
    config: ModelConfig
    weights: Mapping[str, FloatArray]  # by the names of the checkpoint
    arithmetic: Arithmetic
    float_type: FloatType  # of the states
    max_tokens: int  # length of the tables of positions

    def embed(self, token_ids: ir.Value, stack: Stack, pick: PickRows) -> ir.Value:
        """Return the normalised input of a stack: embeddings [..., d_model] of token ids [...] plus positions."""
        config, graph = self.config, self.graph
        name = SOURCE_EMBEDDING if stack == "encoder" and config.tied_embeddings != "all" else EMBEDDING
        factor = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        positions = None
        if config.positions in ("sinusoidal", "learned"):
            positions = pick(lambda: self._stored("position_encodings", self._encodings(stack)))
        states = self.arithmetic.lookup(graph, token_ids, Weights(name, self.weights[name]), factor=factor)
        if positions is not None:
            states = graph.op("Add", states, positions)
        return self.norm(states, f"{stack}.embedding_norm") if config.embedding_norm else states

    def _encodings(self, stack: Stack) -> FloatArray:
        config, offset = self.config, self.config.position_offset
        if config.positions == "learned":
            return self.weights[f"{stack}.positions.weight"][offset:]
        width, layout = config.d_model, config.sinusoid_layout
        return sinusoidal_positions(self.max_tokens, width, offset=offset, layout=layout)

    def rotary(self, pick: PickRows) -> tuple[ir.Value, ir.Value] | None:
        """Return cosines and sines at the picked positions; None if positions are not rotary."""
        if self.config.positions != "rotary":
            return None
        table = rotary_positions(self.max_tokens, self.config.head_size)
        rows = pick(lambda: self._stored("rotary_positions", table))  # [T, D], or [B, 1, D]
        size = self.config.head_size // 2
        cosines, sines = self.graph.split(self.graph.op("Unsqueeze", rows, self.graph.shape(-2)), size, size)
        return cosines, sines

    def first_rows(self, token_ids: ir.Value) -> PickRows:
        """Pick the rows [T, ...] of the positions of token ids [B, T]."""

        def pick(make_table: Callable[[], ir.Value]) -> ir.Value:
            graph, table = self.graph, make_table()
            return graph.op("Slice", table, graph.shape(0), graph.op("Shape", token_ids, start=1), graph.shape(0))

        return pick

    def scalar(self, value: float) -> ir.Value:
        """Return a stored scalar of the states' type."""
        return self.graph.scalar(value, self.float_type)

    def project(self, states: ir.Value) -> ir.Value:
        """Return float32 logits [..., V]."""
        name = projection_table(self.config)
        bias = self.weights[PROJECTION_BIAS] if self.config.projection_bias else None
        return self.arithmetic.project(self.graph, states, Weights(name, self.weights[name], bias))

    def norm(self, states: ir.Value, path: str) -> ir.Value:
        """Normalise the last axis with the weights of a path; mean and variance are float32."""
        is_layer_norm, epsilon = self.config.norm_kind == "layer", self.config.norm_epsilon
        parts = _PARTS if is_layer_norm else _PARTS[:1]
        stored = [self._stored(f"{path}.{part}", self.weights[f"{path}.{part}"]) for part in parts]
        op_type = "LayerNormalization" if is_layer_norm else "RMSNormalization"
        return self.graph.op(op_type, states, *stored, epsilon=epsilon)

    def final_norm(self, states: ir.Value, stack: Stack) -> ir.Value:
        """Normalise the output of a pre-norm stack."""
        return self.norm(states, f"{stack}.norm") if self.config.has_final_norm else states

    def layer(
        self,
        states: ir.Value,
        path: str,
        *,
        first: FirstPart,
        attend_cross: AttendCross | None = None,
    ) -> ir.Value:
        """Write a layer: its first part, cross-attention if `attend_cross` is given, feed-forward, each residual.

        The path is that of the weights, and prefix of the node names.
        """
        with self.graph.scope(path):
            states = first(states, path)
            if attend_cross is not None:
                states = self._residual(
                    states,
                    f"{path}.cross_attention",
                    lambda entered, own: self.cross_attention(entered, own, attend_cross),
                )
            return self._residual(states, f"{path}.feed_forward", self._feed_forward)

    def recurrence(self, states: ir.Value, path: str, recur: Recur) -> ir.Value:
        """Write an SSRU, the first part of a layer, including its residual connection."""
        graph, width = self.graph, self.config.d_model

        def recurred(entered: ir.Value, own: str) -> ir.Value:
            with graph.scope("recurrence"):
                joined = self.linear(entered, [f"{own}.input", f"{own}.forget"])
                inner, gate = graph.split(joined, width, width)
                forget = graph.op("Sigmoid", gate)
                added = graph.op("Mul", graph.op("Sub", self.scalar(1.0), forget), inner)
                return graph.op("Relu", recur(forget, added))

        return self._residual(states, f"{path}.recurrence", recurred)

    def self_attention(
        self, states: ir.Value, path: str, attend: AttendSelf, rotary: tuple[ir.Value, ir.Value] | None = None
    ) -> ir.Value:
        """Write self-attention, the first part of a layer, including its residual connection."""
        config = self.config
        query_size, key_size = config.num_heads * config.head_size, config.key_size

        def attended(entered: ir.Value, own: str) -> ir.Value:
            with self.graph.scope("self_attention"):
                joined = self.linear(entered, [f"{own}.{part}" for part in ("query", "key", "value")])
                if rotary is not None:
                    turned, value = self.graph.split(joined, query_size + key_size, key_size)
                    query, key = self.graph.split(self._turned(turned, *rotary), query_size, key_size)
                else:
                    query, key, value = self.graph.split(joined, query_size, key_size, key_size)
                return self.linear(attend(query, key, value), [f"{own}.output"])

        return self._residual(states, f"{path}.self_attention", attended)

    def _turned(self, states: ir.Value, cosines: ir.Value, sines: ir.Value) -> ir.Value:
        # Rotates heads side by side, [B, T, heads * D], as `model.positions.rotary_positions` describes.
        graph, size = self.graph, self.config.head_size // 2
        first, second = graph.split(graph.op("Reshape", states, graph.shape(0, 0, -1, 2 * size)), size, size)
        real = graph.op("Sub", graph.op("Mul", first, cosines), graph.op("Mul", second, sines))
        imaginary = graph.op("Add", graph.op("Mul", second, cosines), graph.op("Mul", first, sines))
        return graph.op("Reshape", graph.op("Concat", real, imaginary, axis=-1), graph.shape(0, 0, -1))

    @property
    def num_groups(self) -> int:
        """G, query heads that share a head of keys and values."""
        return self.config.num_heads // self.config.num_key_heads

    def grouped(self, query: ir.Value) -> ir.Value:
        """Return query [B, T, H * D] as [B, T * G, H / G * D]: heads that share keys become queries."""
        size = self.config.key_size
        return query if self.num_groups == 1 else self.graph.op("Reshape", query, self.graph.shape(0, -1, size))

    def ungrouped(self, attended: ir.Value) -> ir.Value:
        """Return the attention output of `grouped` queries as [B, T, H * D]."""
        size = self.config.num_heads * self.config.head_size
        return attended if self.num_groups == 1 else self.graph.op("Reshape", attended, self.graph.shape(0, -1, size))

    def grouped_mask(self, mask: ir.Value) -> ir.Value:
        """Return a mask [..., T, L] for `grouped` queries: [..., T * G, L]."""
        if self.num_groups == 1:
            return mask
        graph = self.graph

        def repeated() -> ir.Value:
            flat = graph.op("Unsqueeze", mask, graph.shape(-2))  # [..., T, 1, L]
            copies = graph.op("Concat", *[flat] * self.num_groups, axis=-2)
            rows, width = graph.op("Shape", mask, end=-2), graph.op("Shape", mask, start=-1)
            return graph.op("Reshape", copies, graph.op("Concat", rows, graph.shape(-1), width, axis=0))

        return graph.once("grouped_mask", repeated)

    def cross_attention(self, entered: ir.Value, path: str, attend: AttendCross) -> ir.Value:
        """Write cross-attention without its residual connection."""
        with self.graph.scope("cross_attention"):
            query = self.linear(entered, [f"{path}.query"])
            return self.linear(attend(query), [f"{path}.output"])

    def entered(self, states: ir.Value, path: str) -> ir.Value:
        """Return the input of a sublayer; pre-norm normalises it with the weights of `{path}_norm`."""
        return self.norm(states, f"{path}_norm") if self.config.norm == "pre" else states

    def _residual(self, states: ir.Value, path: str, sublayer: Callable[[ir.Value, str], ir.Value]) -> ir.Value:
        # Adds the output of a sublayer to the stream; post-norm normalises the sum.
        # Add and LayerNormalization stay apart: the CPU kernel of SkipLayerNormalization is several times slower.
        total = self.graph.op("Add", states, sublayer(self.entered(states, path), path))
        return total if self.config.norm == "pre" else self.norm(total, f"{path}_norm")

    def linear(self, states: ir.Value, paths: Sequence[str], *, rectifies: bool = False) -> ir.Value:
        """Multiply by the concatenated weights of all paths and add their biases."""
        name = paths[0] if len(paths) == 1 else f"{paths[0]}.fused"
        weight, bias = (np.concatenate([self.weights[f"{path}.{part}"] for path in paths]) for part in _PARTS)
        return self.arithmetic.linear(self.graph, states, Weights(name, weight, bias), rectifies=rectifies)

    def _feed_forward(self, states: ir.Value, path: str) -> ir.Value:
        # max(0, x W1 + b1) W2 + b2, or another activation in place of the maximum
        graph, activation = self.graph, self.config.activation
        with graph.scope("feed_forward"):
            if activation == "swiglu":
                joined = self.linear(states, [f"{path}.inner", f"{path}.gate"])
                inner, gate = graph.split(joined, self.config.ffn_size, self.config.ffn_size)
                return self.linear(graph.op("Mul", self._swish(gate), inner), [f"{path}.outer"])
            inner = self.linear(states, [f"{path}.inner"])
            if activation == "relu":
                return self.linear(inner, [f"{path}.outer"], rectifies=True)
            activated = graph.op("Gelu", inner) if activation == "gelu" else self._swish(inner)
            return self.linear(activated, [f"{path}.outer"])

    def _swish(self, states: ir.Value) -> ir.Value:
        # ONNX Runtime has no kernel for `Swish`.
        return self.graph.op("Mul", states, self.graph.op("Sigmoid", states))

    def _stored(self, name: str, array: FloatArray) -> ir.Value:
        return self.graph.constant(name, array.astype(self.float_type))
