"""The encoder graph: source ids in, keys and values for the cross-attention of every decoder layer out."""

from collections.abc import Callable, Mapping
from itertools import chain

import onnx_ir as ir

from dragoman_export.model.config import ModelConfig
from dragoman_export.onnx_export.arithmetic import Arithmetic, FloatArray
from dragoman_export.onnx_export.blocks import AttendSelf, NetworkWriter, PickRows
from dragoman_export.onnx_export.write import MICROSOFT, GraphBuilder
from dragoman_service.bundle.architecture import FloatType, graph_tensors, layer_names


def build_encoder(
    config: ModelConfig,
    weights: Mapping[str, FloatArray],
    arithmetic: Arithmetic,
    float_type: FloatType,
    *,
    max_source_tokens: int,
) -> ir.Model:
    """Return the encoder graph; its tensors are described by `dragoman_service.bundle.architecture.graph_tensors`.

    Source positions at and beyond a segment's length have no influence on those before, bit for bit.
    """
    graph = GraphBuilder("encoder")
    writer = _EncoderWriter(graph, config, weights, arithmetic, float_type, max_source_tokens)
    dtypes = graph_tensors(config.num_decoder_layers, float_type).encoder.inputs
    source_ids = graph.input("source_ids", dtypes["source_ids"], ["B", "S"])
    source_lengths = graph.input("source_lengths", dtypes["source_lengths"], ["B"])
    pick = writer.first_rows(source_ids)
    states, rotary = writer.embed(source_ids, "encoder", pick), writer.rotary(pick)
    attend = writer.attend_self(source_lengths)
    for index in range(config.num_encoder_layers):
        states = writer.layer(states, f"encoder.layers.{index}", attend_self=attend, rotary=rotary)
    writer.write_cross_attention(writer.final_norm(states, "encoder"))
    return graph.build()


class _EncoderWriter(NetworkWriter):
    """Adds what only the encoder graph has."""

    __slots__ = ()

    def first_rows(self, source_ids: ir.Value) -> PickRows:
        """Pick the rows [S, ...] of the source's positions."""

        def pick(make_table: Callable[[], ir.Value]) -> ir.Value:
            num_positions = self.graph.op("Shape", source_ids, start=1)
            begin = axis = self.graph.shape(0)
            return self.graph.op("Slice", make_table(), begin, num_positions, axis)

        return pick

    def attend_self(self, source_lengths: ir.Value) -> AttendSelf:
        """Attend to the real tokens of the source."""
        return lambda query, key, value: self.ungrouped(
            self.graph.op(
                "MultiHeadAttention",
                *(self.grouped(query), key, value, None, source_lengths),
                domain=MICROSOFT,
                num_heads=self.config.num_key_heads,
            )
        )

    def write_cross_attention(self, memory: ir.Value) -> None:
        """Project the memory for all decoder layers in one product and declare the outputs."""
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
