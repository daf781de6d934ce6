"""Mixed precision: some kinds of products in float32, the others in int8."""

import re
from collections.abc import Collection
from enum import StrEnum

import onnx_ir as ir

from dragoman_export.onnx_export.arithmetic import Arithmetic, Weights
from dragoman_export.onnx_export.blocks import EMBEDDING, PROJECTION, SOURCE_EMBEDDING
from dragoman_export.onnx_export.write import GraphBuilder


class ProductKind(StrEnum):
    """Kinds of weight products, which may overlap."""

    VOCABULARY = "vocabulary"  # output projection and embedding tables, which may be one array
    FEED_FORWARD = "feed-forward"  # both products of every feed-forward block
    FEED_FORWARD_OUTER = "feed-forward-outer"  # the second of the two, after the ReLU
    ATTENTION = "attention"  # queries, keys, values and outputs of self- and cross-attention
    ENCODER = "encoder"  # all products of the encoder graph, including keys and values of cross-attention
    DECODER = "decoder"  # all products of the decoder graph, including the output projection


_TABLES = "|".join(map(re.escape, (EMBEDDING, PROJECTION)))

# regular expressions for the names of weights
_NAMES = {
    ProductKind.VOCABULARY: rf"{_TABLES}|{re.escape(SOURCE_EMBEDDING)}",
    ProductKind.FEED_FORWARD: r".*\.feed_forward\.",
    ProductKind.FEED_FORWARD_OUTER: r".*\.feed_forward\.outer",
    ProductKind.ATTENTION: r".*_attention\.",
    ProductKind.ENCODER: r"encoder\.|.*\.cross_attention\.key",
    ProductKind.DECODER: rf"decoder\.(?!.*\.cross_attention\.key)|{_TABLES}",
}


class Mixed:
    """Products of some kinds in one arithmetic, the others in another; both use the same float type."""

    def __init__(self, kinds: Collection[ProductKind], *, kept: Arithmetic, others: Arithmetic) -> None:
        self._names = [re.compile(_NAMES[kind]) for kind in kinds]
        self._kept = kept
        self._others = others

    def linear(self, graph: GraphBuilder, states: ir.Value, layer: Weights, *, rectifies: bool = False) -> ir.Value:
        """Multiply with the arithmetic of the name."""
        return self._of(layer.name).linear(graph, states, layer, rectifies=rectifies)

    def lookup(self, graph: GraphBuilder, token_ids: ir.Value, table: Weights, *, factor: float) -> ir.Value:
        """Gather rows with the arithmetic of the name."""
        return self._of(table.name).lookup(graph, token_ids, table, factor=factor)

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Multiply by the table with the arithmetic of the name."""
        return self._of(table.name).project(graph, states, table)

    def _of(self, name: str) -> Arithmetic:
        return self._kept if any(pattern.match(name) for pattern in self._names) else self._others
