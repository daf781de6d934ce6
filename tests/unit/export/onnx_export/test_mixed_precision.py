from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import Limits
from tests.tiny_bundle import tiny_model

# Of two layers each: four of an encoder layer and the keys and values of the decoder; six of a decoder layer and the
# projection to the vocabulary.
_NUM_PRODUCTS = {"encoder": 9, "decoder": 13}


def _write(folder: Path, *kinds: ProductKind) -> dict[str, ir.Graph]:
    """Write the int8 graphs of a tiny network that keeps some kinds in floats, and return them by name."""
    network = Network.of(tiny_model(40), kept=frozenset(kinds))
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


def test_outer_feed_forward_product_is_kept(tmp_path: Path) -> None:
    stored = _write(tmp_path, ProductKind.FEED_FORWARD_OUTER)["encoder"].initializers

    assert {name for name in stored if name.endswith("outer.weight")} == {
        f"encoder.layers.{layer}.feed_forward.outer.weight" for layer in range(2)
    }
    assert {name for name in stored if name.endswith("inner.weight")} == set()


@pytest.mark.parametrize("kind", [ProductKind.VOCABULARY, ProductKind.DECODER])
def test_kept_table_is_looked_up_in_floats(tmp_path: Path, kind: ProductKind) -> None:
    graphs = _write(tmp_path, kind)

    for graph in graphs.values():
        assert "embedding.weight" in graph.initializers
        assert "embedding.weight.int8" not in graph.initializers


@pytest.mark.parametrize(
    ("kind", "tables"),
    [
        (ProductKind.VOCABULARY, {"embedding.weight", "encoder.embedding.weight", "projection.weight"}),
        (ProductKind.ENCODER, {"encoder.embedding.weight"}),
        (ProductKind.DECODER, {"embedding.weight", "projection.weight"}),
    ],
)
def test_separate_tables_are_kept_with_their_kind(tmp_path: Path, kind: ProductKind, tables: set[str]) -> None:
    network = Network.of(tiny_model(40, tied_embeddings="none"), kept=frozenset({kind}))

    files = write_graphs(tmp_path, network, "int8", Limits(max_source_tokens=8, max_target_tokens=8))

    stored = {name for file in (files.encoder, files.decoder) for name in ir.load(tmp_path / file).graph.initializers}
    assert {name for name in stored if name.endswith(("embedding.weight", "projection.weight"))} == tables
