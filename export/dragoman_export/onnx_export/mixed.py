"""Some kinds of products in one arithmetic, all others in another: layers that stay in floats beside int8 ones."""

import re
from collections.abc import Collection
from enum import StrEnum

import onnx_ir as ir

from dragoman_export.onnx_export.arithmetic import Arithmetic, FloatArray
from dragoman_export.onnx_export.blocks import EMBEDDING, PROJECTION, SOURCE_EMBEDDING
from dragoman_export.onnx_export.write import GraphBuilder


class ProductKind(StrEnum):
    """Products with weights that go together; the kinds overlap."""

    VOCABULARY = "vocabulary"
    """The projection to the vocabulary, and with it the tables of embeddings, which may be the same array."""
    FEED_FORWARD = "feed-forward"
    """Both products of every feed-forward block."""
    FEED_FORWARD_OUTER = "feed-forward-outer"
    """The second of the two, which takes what the ReLU leaves."""
    ATTENTION = "attention"
    """Queries, keys, values and outputs of every self- and cross-attention."""
    ENCODER = "encoder"
    """All products of the encoder graph, the keys and values of cross-attention included."""
    DECODER = "decoder"
    """All products of the decoder graph, the projection to the vocabulary included."""


_TABLES = "|".join(map(re.escape, (EMBEDDING, PROJECTION)))

_NAMES = {
    ProductKind.VOCABULARY: rf"{_TABLES}|{re.escape(SOURCE_EMBEDDING)}",
    ProductKind.FEED_FORWARD: r".*\.feed_forward\.",
    ProductKind.FEED_FORWARD_OUTER: r".*\.feed_forward\.outer",
    ProductKind.ATTENTION: r".*_attention\.",
    ProductKind.ENCODER: r"encoder\.|.*\.cross_attention\.key",
    ProductKind.DECODER: rf"decoder\.(?!.*\.cross_attention\.key)|{_TABLES}",
}
"""What the name that `Arithmetic` is given begins with."""


class Mixed:
    """Products of the kinds kept in one arithmetic, the others in another; both take and give the same floats."""

    def __init__(self, kinds: Collection[ProductKind], *, kept: Arithmetic, others: Arithmetic) -> None:
        """Take the kinds that `kept` multiplies, and who multiplies the others."""
        self._names = [re.compile(_NAMES[kind]) for kind in kinds]
        self._kept = kept
        self._others = others

    def linear(
        self,
        graph: GraphBuilder,
        states: ir.Value,
        name: str,
        weight: FloatArray,
        bias: FloatArray,
        *,
        rectifies: bool = False,
    ) -> ir.Value:
        """Multiply as the name's arithmetic does."""
        return self._of(name).linear(graph, states, name, weight, bias, rectifies=rectifies)

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather rows of the one table that the projection reads, too."""
        return self._of(name).lookup(graph, token_ids, name, table, factor=factor)

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the table as its arithmetic does."""
        return self._of(name).project(graph, states, name, table, bias)

    def _of(self, name: str) -> Arithmetic:
        return self._kept if any(pattern.match(name) for pattern in self._names) else self._others
