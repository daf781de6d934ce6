"""The decoder graph: one step, which appends a token to every row and returns its best continuations.

The K rows of a segment share one pool of L slots for the keys and values of their tokens. A step writes each row's
newest token into a free slot in place; the ancestor mask selects the slots of a row. Nothing is reordered or
concatenated, and rows with a common prefix share its slots. The order of slots is irrelevant to attention, because
positions are part of the embeddings. The cells of recurrent layers are in a pool with one slot per row.
"""

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from dragoman_export.model.config import ModelConfig
from dragoman_export.onnx_export.blocks import AttendCross, AttendSelf, FirstPart, NetworkParts, NetworkWriter, Recur
from dragoman_export.onnx_export.write import MICROSOFT, GraphBuilder
from dragoman_service.bundle.architecture import FloatType, graph_tensors, layer_names, pool_kinds

_MAX_CHUNK = 64  # tokens of the vocabulary per chunk in the first stage of the top-k search
_MIN_CHUNK = 8  # with smaller chunks there are hardly fewer chunks than tokens, so the vocabulary is padded instead


def build_decoder(parts: NetworkParts, *, max_target_tokens: int) -> ir.Model:
    """Return the graph of one decoder step, with the tensors of `bundle.architecture.graph_tensors`."""
    graph, config, float_type = GraphBuilder("decoder"), parts[0], parts[-1]
    writer = _DecoderWriter(graph, *parts, max_target_tokens)
    inputs = _declare_inputs(graph, config, float_type)
    inputs["num_rows"] = graph.op("Shape", inputs["token_ids"], start=1, end=2)  # K, as int64 [1]

    def pick(make_table: Callable[[], ir.Value]) -> ir.Value:
        return graph.op("Gather", make_table(), inputs["positions"])  # [B, 1, ...] per segment

    states, rotary = writer.embed(inputs["token_ids"], "decoder", pick), writer.rotary(pick)
    for index in range(config.num_decoder_layers):
        states = writer.layer(
            states,
            f"decoder.layers.{index}",
            first=writer.first_part(inputs, index, rotary),
            attend_cross=writer.attend_cross(inputs, index),
        )
    logits = writer.project(writer.final_norm(states, "decoder"))
    write_candidates(graph, logits, inputs["num_candidates"], vocabulary_size=config.vocabulary_size)
    return graph.build()


class _DecoderWriter(NetworkWriter):
    __slots__ = ()

    def first_part(
        self, inputs: Mapping[str, ir.Value], index: int, rotary: tuple[ir.Value, ir.Value] | None
    ) -> FirstPart:
        if self.config.decoder_type == "ssru":
            return lambda states, path: self.recurrence(states, path, self.recur(inputs, index))
        return lambda states, path: self.self_attention(states, path, self.attend_self(inputs, index), rotary)

    def attend_self(self, inputs: Mapping[str, ir.Value], index: int) -> AttendSelf:
        # Writes key and value into the pool and attends to the row's ancestors.
        def attend(query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
            keys = self._write_slots(inputs[f"self_key_pool.{index}"], inputs["slots"], key, index)
            values = self._write_slots(inputs[f"self_value_pool.{index}"], inputs["slots"], value, index)
            attended = self.graph.op(
                "Attention",
                *(self.grouped(self._paired(query, inputs)), keys, values, self.grouped_mask(inputs["ancestor_mask"])),
                q_num_heads=self.config.num_key_heads,
                kv_num_heads=self.config.num_key_heads,
            )
            return self._unpaired(self.ungrouped(attended), inputs)

        return attend

    def recur(self, inputs: Mapping[str, ir.Value], index: int) -> Recur:
        # Reads the cells of all parents before it writes the cells of the rows.
        def continued(forget: ir.Value, added: ir.Value) -> ir.Value:
            graph, pool = self.graph, inputs[f"state_pool.{index}"]
            former = graph.op("GatherND", pool, inputs["parents"])  # [B, K, d_model]
            cells = graph.op("Add", added, graph.op("Mul", forget, former))
            self._write_slots(pool, inputs["slots"], cells, index)
            return cells

        return continued

    def attend_cross(self, inputs: Mapping[str, ir.Value], index: int) -> AttendCross:
        # The rows of a segment are the query positions of one attention, so its keys are not repeated per row.
        keys, values = inputs[f"cross_key.{index}"], inputs[f"cross_value.{index}"]

        def attend(query: ir.Value) -> ir.Value:
            attended = self.graph.op(
                "MultiHeadAttention",
                *(self.grouped(self._paired(query, inputs)), keys, values, None, inputs["source_lengths"]),
                domain=MICROSOFT,
                num_heads=self.config.num_key_heads,
            )
            return self._unpaired(self.ungrouped(attended), inputs)

        return attend

    def _write_slots(self, pool: ir.Value, slots: ir.Value, rows: ir.Value, index: int) -> ir.Value:
        # Writes rows [B, K, H * D] into their slots; no copy if input and output share one buffer.
        written = self.graph.op("ScatterND", pool, slots, rows)
        kind = str(pool.name).partition(".")[0]
        self.graph.output(written, f"{kind}.written.{index}", self.float_type, pool_shape(self.config))
        return written

    # ONNX Runtime's CPU kernels sum in another order if attention has a single query. A single row is duplicated, so
    # that translations do not depend, even in the last bit, on the number of rows of other segments.

    def _paired(self, query: ir.Value, inputs: Mapping[str, ir.Value]) -> ir.Value:
        # Query rows [B, Q, H * D], Q >= 2, of [B, K, H * D].
        return self.graph.op("Gather", query, inputs["query_rows"], axis=1)

    def _unpaired(self, attended: ir.Value, inputs: Mapping[str, ir.Value]) -> ir.Value:
        axis = self.graph.shape(1)
        return self.graph.op("Slice", attended, self.graph.shape(0), inputs["num_rows"], axis)


def _declare_inputs(graph: GraphBuilder, config: ModelConfig, float_type: FloatType) -> dict[str, ir.Value]:
    shapes: dict[str, list[int | str]] = {
        "token_ids": ["B", "K"],
        "positions": ["B", 1],
        "slots": ["B", "K", 2],
        "query_rows": ["Q"],
        **({"parents": ["B", "K", 2]} if config.decoder_type == "ssru" else {"ancestor_mask": ["B", 1, "Q", "L"]}),
        "source_lengths": ["B"],
        "num_candidates": [1],
    }
    cross: list[int | str] = ["B", config.num_key_heads, "S", config.head_size]
    kinds = {
        **dict.fromkeys(pool_kinds(config.decoder_type), pool_shape(config)),
        "cross_key": cross,
        "cross_value": cross,
    }
    for name in layer_names(tuple(kinds), config.num_decoder_layers):
        shapes[name] = kinds[name.partition(".")[0]]
    dtypes = graph_tensors(config.num_decoder_layers, float_type, config.decoder_type).decoder.inputs
    return {name: graph.input(name, dtypes[name], shape) for name, shape in shapes.items()}


def pool_shape(config: ModelConfig) -> list[int | str]:
    """Return the declared shape of a layer's pools."""
    return ["B", "L", config.d_model if config.decoder_type == "ssru" else config.key_size]


def write_candidates(graph: GraphBuilder, logits: ir.Value, num_candidates: ir.Value, *, vocabulary_size: int) -> None:
    """Declare the outputs: the best C tokens of every row, found in two stages.

    The best C tokens are in the C chunks with the best maxima. Finding chunk maxima is several times faster than a
    top-k over all tokens. Padding tokens have probability zero and therefore rank last.
    """
    log_probs = graph.op("LogSoftmax", logits, axis=-1)
    with graph.scope("candidates"):
        chunk_size, padding = max(size for size in range(1, _MAX_CHUNK + 1) if vocabulary_size % size == 0), 0
        if chunk_size < _MIN_CHUNK:
            chunk_size, padding = _MAX_CHUNK, -vocabulary_size % _MAX_CHUNK
        if padding:
            ends = graph.shape(0, 0, 0, 0, 0, padding)
            log_probs = graph.op("Pad", log_probs, ends, graph.scalar(-math.inf))
        size = graph.scalar(chunk_size, "int64")
        chunks = graph.op("Reshape", log_probs, graph.shape(0, 0, -1, chunk_size))  # [B, K, V] -> [B, K, chunks, size]
        maxima = graph.op("ReduceMax", chunks, graph.shape(-1), keepdims=0)
        # Slice instead of Min: the count is needed on the host, and Min would run on the GPU and copy it back.
        first = graph.op("Slice", maxima, graph.shape(0), num_candidates, graph.shape(2))
        _, best = graph.largest(maxima, graph.op("Shape", first, start=2))  # [B, K, min(C, chunks)]
        picked = graph.op("GatherND", chunks, graph.op("Unsqueeze", best, graph.shape(-1)), batch_dims=2)
        best_log_probs, places = graph.largest(graph.op("Reshape", picked, graph.shape(0, 0, -1)), num_candidates)
        chunk = graph.op("GatherElements", best, graph.op("Div", places, size), axis=-1)
        token_ids = graph.op("Add", graph.op("Mul", chunk, size), graph.op("Mod", places, size))
    graph.output(best_log_probs, "log_probs", "float32", ["B", "K", "C"])
    graph.output(token_ids, "candidate_ids", "int64", ["B", "K", "C"])
