"""The attention graph: cross-attention weights of the tokens of a given target.

The step graph uses a fused kernel that does not return its weights. This graph takes a whole target at once, with a
causal mask, and outputs the weights of each layer. Nodes after the last weights, such as the projection, are omitted.
"""

import math
from collections.abc import Mapping

import onnx_ir as ir

from dragoman_export.model.config import ModelConfig
from dragoman_export.onnx_export.blocks import AttendCross, AttendSelf, FirstPart, NetworkParts, NetworkWriter, Recur
from dragoman_export.onnx_export.write import GraphBuilder
from dragoman_service.bundle.architecture import FloatType, attention_tensors

# added to masked scores: their weight becomes exactly 0 and no row becomes NaN; half precision ends at -65,504
_HIDDEN = -3e4


def build_attention(parts: NetworkParts, *, max_target_tokens: int) -> ir.Model:
    """Return the attention graph, with the tensors of `dragoman_service.bundle.architecture.attention_tensors`.

    Padding of targets and sources does not influence the weights.
    """
    graph, (config, _, _, float_type) = GraphBuilder("attention"), parts
    writer = _AttentionWriter(graph, *parts, max_target_tokens)
    inputs = _declare_inputs(graph, config, float_type)
    token_ids = inputs["token_ids"]
    source_mask = writer.source_mask(inputs["source_lengths"], inputs["cross_key.0"])
    pick = writer.first_rows(token_ids)
    states, first = writer.embed(token_ids, "decoder", pick), writer.first_part(token_ids, writer.rotary(pick))
    *whole_layers, last = range(config.num_decoder_layers)
    for index in whole_layers:
        states = writer.layer(
            states,
            f"decoder.layers.{index}",
            first=first,
            attend_cross=writer.attend_cross(inputs, source_mask, index),
        )
    with graph.scope(f"decoder.layers.{last}") as path:  # ends with its weights
        states = first(states, path)
        writer.last_weights(states, f"{path}.cross_attention", inputs, source_mask, last)
    return graph.build()


class _AttentionWriter(NetworkWriter):
    __slots__ = ()

    def first_part(self, token_ids: ir.Value, rotary: tuple[ir.Value, ir.Value] | None) -> FirstPart:
        if self.config.decoder_type == "ssru":
            recur = self.recur(token_ids)
            return lambda states, path: self.recurrence(states, path, recur)
        attend = self.attend_self(self.causal_mask(token_ids))
        return lambda states, path: self.self_attention(states, path, attend, rotary)

    def causal_mask(self, token_ids: ir.Value) -> ir.Value:
        # [T, T] of the states' type
        length = self.graph.op("Shape", token_ids, start=1)
        square = self.graph.op("Concat", length, length, axis=0)
        hidden = self.graph.op("Expand", self.scalar(_HIDDEN), square)
        return self.graph.op("Trilu", hidden, self.graph.scalar(1, "int64"), upper=1)

    def source_mask(self, source_lengths: ir.Value, cross_key: ir.Value) -> ir.Value:
        # float32 [B, 1, 1, S], hides the padding of sources
        graph = self.graph
        width = graph.op("Squeeze", graph.op("Shape", cross_key, start=2, end=3))
        positions = graph.op("Range", graph.scalar(0, "int64"), width, graph.scalar(1, "int64"))
        lengths = graph.op("Unsqueeze", graph.op("Cast", source_lengths, to=ir.DataType.INT64), graph.shape(1))
        is_real = graph.op("Less", positions, lengths)  # [B, S]
        added = graph.op("Where", is_real, graph.scalar(0.0), graph.scalar(_HIDDEN))
        return graph.op("Unsqueeze", added, graph.shape(1, 2))

    def attend_self(self, causal_mask: ir.Value) -> AttendSelf:
        return lambda query, key, value: self.ungrouped(
            self.graph.op(
                "Attention",
                *(self.grouped(query), key, value, self.grouped_mask(causal_mask)),
                q_num_heads=self.config.num_key_heads,
                kv_num_heads=self.config.num_key_heads,
            )
        )

    def recur(self, token_ids: ir.Value) -> Recur:
        # The scan of `model.layers.SimpleRecurrence`, for the largest number of tokens.
        graph = self.graph
        length = graph.op("Shape", token_ids, start=1)

        def delayed(states: ir.Value, distance: int) -> ir.Value:
            padded = graph.op("Pad", states, graph.shape(0, distance, 0, 0, 0, 0), self.scalar(0.0))
            return graph.op("Slice", padded, graph.shape(0), length, graph.shape(1))

        def scanned(forget: ir.Value, added: ir.Value) -> ir.Value:
            cells, distance = added, 1
            while distance < self.max_tokens:
                cells = graph.op("Add", cells, graph.op("Mul", forget, delayed(cells, distance)))
                forget = graph.op("Mul", forget, delayed(forget, distance))
                distance *= 2
            return cells

        return scanned

    def attend_cross(self, inputs: Mapping[str, ir.Value], source_mask: ir.Value, index: int) -> AttendCross:
        def attend(query: ir.Value) -> ir.Value:
            graph = self.graph
            weights = self._output_weights(query, inputs[f"cross_key.{index}"], source_mask, index)
            values = self._per_head(inputs[f"cross_value.{index}"])
            heads = graph.op("MatMul", self._cast(weights, ir.DataType.FLOAT16), values)  # [B, H, T, D]
            per_token = graph.op("Transpose", heads, perm=[0, 2, 1, 3])
            return graph.op("Reshape", per_token, graph.shape(0, 0, self.config.num_heads * self.config.head_size))

        return attend

    def last_weights(
        self, states: ir.Value, path: str, inputs: Mapping[str, ir.Value], source_mask: ir.Value, index: int
    ) -> None:
        # Outputs the weights of the last layer, whose other nodes are omitted.
        entered = self.entered(states, path)
        with self.graph.scope("cross_attention"):
            query = self.linear(entered, [f"{path}.query"])
            self._output_weights(query, inputs[f"cross_key.{index}"], source_mask, index)

    def _output_weights(self, query: ir.Value, cross_key: ir.Value, source_mask: ir.Value, index: int) -> ir.Value:
        # Adds an output of the graph, float32 softmax(Q K^T / sqrt(D) + mask) [B, H, T, S], and returns it.
        graph, config = self.graph, self.config
        scaled = graph.op("Mul", query, self.scalar(1 / math.sqrt(config.head_size)))
        heads = graph.op("Reshape", scaled, graph.shape(0, 0, config.num_heads, config.head_size))
        heads = graph.op("Transpose", heads, perm=[0, 2, 1, 3])  # [B, T, H, D] -> [B, H, T, D]
        scores = graph.op("MatMul", heads, graph.op("Transpose", self._per_head(cross_key), perm=[0, 1, 3, 2]))
        weights = graph.op("Softmax", graph.op("Add", self._cast(scores, ir.DataType.FLOAT), source_mask), axis=-1)
        graph.output(weights, f"cross_attention.{index}", "float32", ["B", config.num_heads, "T", "S"])
        return weights

    def _per_head(self, shared: ir.Value) -> ir.Value:
        # Keys or values [B, H, S, D] for each query head.
        return shared if self.num_groups == 1 else self.graph.op("Concat", *[shared] * self.num_groups, axis=1)

    def _cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        return value if self.float_type == "float32" else self.graph.op("Cast", value, to=kind)


def _declare_inputs(graph: GraphBuilder, config: ModelConfig, float_type: FloatType) -> dict[str, ir.Value]:
    shapes: dict[str, list[int | str]] = {"token_ids": ["B", "T"], "source_lengths": ["B"]}
    cross: list[int | str] = ["B", config.num_key_heads, "S", config.head_size]
    dtypes = attention_tensors(config.num_decoder_layers, float_type).inputs
    return {name: graph.input(name, dtype, shapes.get(name, cross)) for name, dtype in dtypes.items()}
