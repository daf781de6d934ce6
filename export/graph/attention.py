"""The attention graph: the cross-attention weights with which the tokens of a given target were chosen.

The step graph never spells these weights out: its kernel keeps them to itself. Here a whole target is fed at once,
every position seeing those up to itself, and each layer's weights are a tensor of their own. Whatever lies behind the
weights of the last layer is left out, the projection to the vocabulary above all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.graph.arithmetic import Arithmetic, FloatArray
from export.graph.blocks import NetworkWriter
from export.graph.write import GraphBuilder
from export.model.config import ModelConfig
from service.bundle import FloatType, attention_tensors

_HIDDEN = -3e4
"""Added to the score of what must not be seen: its weight becomes exactly 0, and no row can become NaN. Half precision
reaches to -65,504."""


def build_attention(
    config: ModelConfig,
    weights: Mapping[str, FloatArray],
    arithmetic: Arithmetic,
    float_type: FloatType,
    *,
    max_target_tokens: int,
) -> ir.Model:
    """Return the attention graph; its tensors are described by `service.bundle.attention_tensors`.

    What comes after a target's own tokens, or after a source's, has no influence on its weights.
    """
    graph = GraphBuilder("attention")
    writer = _AttentionWriter(graph=graph, config=config, weights=weights, arithmetic=arithmetic, float_type=float_type)
    inputs = _declare_inputs(graph, config, float_type)
    token_ids = inputs["token_ids"]
    causal_mask = writer.causal_mask(token_ids)
    source_mask = writer.source_mask(inputs["source_lengths"], inputs["cross_key.0"])
    states = writer.embed(token_ids, writer.positions(token_ids, max_target_tokens))
    for index in range(config.num_decoder_layers):
        layer = _LayerInputs(
            index=index,
            causal_mask=causal_mask,
            source_mask=source_mask,
            cross_key=inputs[f"cross_key.{index}"],
            cross_value=inputs.get(f"cross_value.{index}"),
        )
        with graph.scope(f"decoder.layers.{index}") as path:
            states = writer.layer(states, layer, path)
    return graph.build()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerInputs:
    """What one layer reads besides the residual stream."""

    index: int
    causal_mask: ir.Value
    """[T, T], added to scores."""
    source_mask: ir.Value
    """[B, 1, 1, S], added to scores."""
    cross_key: ir.Value
    cross_value: ir.Value | None
    """None in the last layer, whose weights are not applied to anything."""


class _AttentionWriter(NetworkWriter):
    """Adds what only the attention graph has."""

    __slots__ = ()

    def positions(self, token_ids: ir.Value, max_target_tokens: int) -> ir.Value:
        """Return the position encodings [T, d_model]."""
        graph, table = self.graph, self.position_table(max_target_tokens)
        return graph.op("Slice", table, graph.shape(0), graph.op("Shape", token_ids, start=1), graph.shape(0))

    def causal_mask(self, token_ids: ir.Value) -> ir.Value:
        """Return [T, T] of the states' type, which hides from each position those behind it."""
        length = self.graph.op("Shape", token_ids, start=1)
        square = self.graph.op("Concat", length, length, axis=0)
        hidden = self.graph.op("Expand", self.scalar(_HIDDEN), square)
        return self.graph.op("Trilu", hidden, self.graph.scalar(1, "int64"), upper=1)

    def source_mask(self, source_lengths: ir.Value, cross_key: ir.Value) -> ir.Value:
        """Return float32 [B, 1, 1, S], which hides the padding of sources."""
        graph = self.graph
        width = graph.op("Squeeze", graph.op("Shape", cross_key, start=2, end=3))
        positions = graph.op("Range", graph.scalar(0, "int64"), width, graph.scalar(1, "int64"))
        lengths = graph.op("Unsqueeze", graph.op("Cast", source_lengths, to=ir.DataType.INT64), graph.shape(1))
        is_real = graph.op("Less", positions, lengths)  # [B, S]
        added = graph.op("Where", is_real, graph.scalar(0.0), graph.scalar(_HIDDEN))
        return graph.op("Unsqueeze", added, graph.shape(1, 2))

    def layer(self, states: ir.Value, inputs: _LayerInputs, path: str) -> ir.Value:
        """Do as a decoder layer does and declare its weights; the last layer ends with them."""
        states = self.residual(
            states,
            f"{path}.self_attention_norm",
            lambda entered: self._self_attention(entered, inputs, f"{path}.self_attention"),
        )
        norm, attention = f"{path}.cross_attention_norm", f"{path}.cross_attention"
        if inputs.cross_value is None:
            return self._cross_weights(
                self.norm(states, norm) if self.config.norm == "pre" else states, inputs, attention
            )
        states = self.residual(states, norm, lambda entered: self._cross_attention(entered, inputs, attention))
        return self.residual(
            states,
            f"{path}.feed_forward_norm",
            lambda entered: self.feed_forward(entered, f"{path}.feed_forward"),
        )

    def _self_attention(self, states: ir.Value, inputs: _LayerInputs, path: str) -> ir.Value:
        heads = self.config.num_heads
        with self.graph.scope("self_attention"):
            joined = self.linear(states, [f"{path}.{part}" for part in ("query", "key", "value")])
            attended = self.graph.op(
                "Attention",
                *(*self.graph.split(joined, 3), inputs.causal_mask),
                q_num_heads=heads,
                kv_num_heads=heads,
            )
            return self.linear(attended, [f"{path}.output"])

    def _cross_attention(self, states: ir.Value, inputs: _LayerInputs, path: str) -> ir.Value:
        graph = self.graph
        weights = self._cross_weights(states, inputs, path)
        with graph.scope("cross_attention"):
            heads = graph.op("MatMul", self._as_states(weights), inputs.cross_value)  # [B, H, T, D]
            per_token = graph.op("Transpose", heads, perm=[0, 2, 1, 3])
            attended = graph.op("Reshape", per_token, graph.shape(0, 0, self.config.d_model))
            return self.linear(attended, [f"{path}.output"])

    def _cross_weights(self, states: ir.Value, inputs: _LayerInputs, path: str) -> ir.Value:
        """Return float32 softmax(Q K^T / sqrt(D) + mask) [B, H, T, S], an output of the graph."""
        graph, config = self.graph, self.config
        with graph.scope("cross_attention"):
            query = graph.op(
                "Mul", self.linear(states, [f"{path}.query"]), self.scalar(1 / math.sqrt(config.head_size))
            )
            heads = graph.op("Reshape", query, graph.shape(0, 0, config.num_heads, config.head_size))
            heads = graph.op("Transpose", heads, perm=[0, 2, 1, 3])  # [B, T, H, D] -> [B, H, T, D]
            scores = graph.op("MatMul", heads, graph.op("Transpose", inputs.cross_key, perm=[0, 1, 3, 2]))
            weights = graph.op("Softmax", graph.op("Add", self._as_float32(scores), inputs.source_mask), axis=-1)
            graph.output(weights, f"cross_attention.{inputs.index}", "float32", ["B", config.num_heads, "T", "S"])
            return weights

    def _as_states(self, weights: ir.Value) -> ir.Value:
        """Return float32 values as the states' type."""
        return weights if self.float_type == "float32" else self.graph.op("Cast", weights, to=ir.DataType.FLOAT16)

    def _as_float32(self, states: ir.Value) -> ir.Value:
        """Return values of the states' type as float32."""
        return states if self.float_type == "float32" else self.graph.op("Cast", states, to=ir.DataType.FLOAT)


def _declare_inputs(graph: GraphBuilder, config: ModelConfig, float_type: FloatType) -> dict[str, ir.Value]:
    shapes: dict[str, list[int | str]] = {"token_ids": ["B", "T"], "source_lengths": ["B"]}
    cross: list[int | str] = ["B", config.num_heads, "S", config.head_size]
    dtypes = attention_tensors(config.num_decoder_layers, float_type).inputs
    return {name: graph.input(name, dtype, shapes.get(name, cross)) for name, dtype in dtypes.items()}
