from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import Limits
from tests.tiny_bundle import tiny_model

# of two layers: four products of an encoder layer, with the keys and values of the decoder; six of a decoder layer, and
# the projection to the vocabulary
_NUM_PRODUCTS = {"encoder": 9, "decoder": 13}
_TABLES = ("embedding.weight", "projection.weight")


def _write(folder: Path, *kinds: ProductKind, **variant: Any) -> dict[str, ir.Graph]:
    """Write the int8 graphs of a tiny network that keeps some kinds in floats, and return them by name."""
    network = Network.of(tiny_model(40, **variant), kept=frozenset(kinds))
    files = write_graphs(folder, network, "int8", Limits(max_source_tokens=8, max_target_tokens=8))
    return {"encoder": ir.load(folder / files.encoder).graph, "decoder": ir.load(folder / files.decoder).graph}


@pytest.mark.parametrize(
    ("kinds", "in_encoder", "in_decoder"),
    [
        ((), 0, 0),
        ((ProductKind.VOCABULARY,), 0, 1),
        ((ProductKind.FEED_FORWARD,), 4, 4),
        ((ProductKind.FEED_FORWARD_OUTER,), 2, 2),
        ((ProductKind.ATTENTION,), 5, 8),
        ((ProductKind.ENCODER,), 9, 0),
        ((ProductKind.DECODER,), 0, 13),
        ((ProductKind.ATTENTION, ProductKind.FEED_FORWARD, ProductKind.VOCABULARY), 9, 13),
        ((ProductKind.FEED_FORWARD, ProductKind.FEED_FORWARD_OUTER), 4, 4),
    ],
)
def test_only_kept_kinds_are_in_floats(
    tmp_path: Path, kinds: tuple[ProductKind, ...], in_encoder: int, in_decoder: int
) -> None:
    graphs = _write(tmp_path, *kinds)

    for name, in_floats in {"encoder": in_encoder, "decoder": in_decoder}.items():
        nodes = Counter(node.op_type for node in graphs[name])
        assert nodes["MatMul"] == in_floats
        assert nodes["MatMulIntegerToFloat"] == _NUM_PRODUCTS[name] - in_floats


@pytest.mark.parametrize(
    ("kind", "tied", "weights", "kept"),
    [
        (
            ProductKind.FEED_FORWARD_OUTER,
            "all",
            "weight",
            {f"{stack}.layers.{layer}.feed_forward.outer.weight" for stack in _NUM_PRODUCTS for layer in range(2)},
        ),
        (ProductKind.VOCABULARY, "all", "embedding.weight", {"embedding.weight"}),
        (ProductKind.DECODER, "all", "embedding.weight", {"embedding.weight"}),
        (
            ProductKind.VOCABULARY,
            "none",
            _TABLES,
            {"embedding.weight", "encoder.embedding.weight", "projection.weight"},
        ),
        (ProductKind.ENCODER, "none", _TABLES, {"encoder.embedding.weight"}),
        (ProductKind.DECODER, "none", _TABLES, {*_TABLES}),
    ],
)
def test_float_weights_are_kept_with_their_kind(
    tmp_path: Path, kind: ProductKind, tied: str, weights: str | tuple[str, ...], kept: set[str]
) -> None:
    graphs = _write(tmp_path, kind, tied_embeddings=tied)

    stored = {name for graph in graphs.values() for name in graph.initializers}
    assert {name for name in stored if name.endswith(weights) and "norm" not in name} == kept
    assert not any(f"{name}.int8" in stored for name in kept)
