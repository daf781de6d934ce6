"""The encoder graph: from source ids to the cross-attention keys and values of every decoder layer."""

from itertools import chain

import onnx_ir as ir

from dragoman_export.onnx_export.blocks import AttendSelf, NetworkParts, NetworkWriter
from dragoman_export.onnx_export.write import MICROSOFT, GraphBuilder
from dragoman_service.bundle.architecture import graph_tensors, layer_names


def build_encoder(parts: NetworkParts, *, max_source_tokens: int) -> ir.Model:
    """Return the encoder graph, with the tensors of `dragoman_service.bundle.architecture.graph_tensors`.

    Padding does not influence the real tokens, bit for bit.
    """
    graph, (config, _, _, float_type) = GraphBuilder("encoder"), parts
    writer = _EncoderWriter(graph, *parts, max_source_tokens)
    dtypes = graph_tensors(config.num_decoder_layers, float_type).encoder.inputs
    source_ids = graph.input("source_ids", dtypes["source_ids"], ["B", "S"])
    source_lengths = graph.input("source_lengths", dtypes["source_lengths"], ["B"])
    pick = writer.first_rows(source_ids)
    states, rotary = writer.embed(source_ids, "encoder", pick), writer.rotary(pick)
    attend = writer.attend_self(source_lengths)

    def first(states: ir.Value, path: str) -> ir.Value:
        return writer.self_attention(states, path, attend, rotary)

    for index in range(config.num_encoder_layers):
        states = writer.layer(states, f"encoder.layers.{index}", first=first)
    writer.write_cross_attention(writer.final_norm(states, "encoder"))
    return graph.build()


class _EncoderWriter(NetworkWriter):
    __slots__ = ()

    def attend_self(self, source_lengths: ir.Value) -> AttendSelf:
        return lambda query, key, value: self.ungrouped(
            self.graph.op(
                "MultiHeadAttention",
                *(self.grouped(query), key, value, None, source_lengths),
                domain=MICROSOFT,
                num_heads=self.config.num_key_heads,
            )
        )

    def write_cross_attention(self, memory: ir.Value) -> None:
        # Projects the memory for all decoder layers in one product.
        config, graph = self.config, self.graph
        num_heads, head_size, num_parts = config.num_key_heads, config.head_size, 2 * config.num_decoder_layers
        layers = range(config.num_decoder_layers)
        paths = [f"decoder.layers.{layer}.cross_attention" for layer in layers]
        with graph.scope("decoder.cross_attention"):
            joined = self.linear(memory, list(chain.from_iterable((f"{path}.key", f"{path}.value") for path in paths)))
            for name, part in zip(
                layer_names(("cross_key", "cross_value"), config.num_decoder_layers),
                graph.split(joined, *[num_heads * head_size] * num_parts),
                strict=True,
            ):
                heads = graph.op("Reshape", part, graph.shape(0, 0, num_heads, head_size))
                per_head = graph.op("Transpose", heads, perm=[0, 2, 1, 3])  # [B, S, H, D] -> [B, H, S, D]
                graph.output(per_head, name, self.float_type, ["B", num_heads, "S", head_size])
