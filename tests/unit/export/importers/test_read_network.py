from pathlib import Path

import numpy as np
import pytest

from dragoman_export.importers.bundle import read_network
from dragoman_export.onnx_export.network import Network
from dragoman_export.onnx_export.quantize import ProductKind
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary


@pytest.fixture(scope="module")
def expected() -> Network:
    return Network.of(tiny_model(len(tiny_vocabulary())))


def test_half_precision_weights_are_rounded_weights(tmp_path: Path, expected: Network) -> None:
    network = read_network(build_tiny_bundle(tmp_path / "tiny", precisions=("fp16",)))

    assert network.weights.keys() == expected.weights.keys()
    for name, array in network.weights.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected.weights[name].astype(np.float16))


def test_float_weights_of_int8_graphs_are_unchanged(tmp_path: Path, expected: Network) -> None:
    kept = frozenset({ProductKind.ENCODER, ProductKind.VOCABULARY})

    network = read_network(build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), kept=kept))

    assert network.weights.keys() == expected.weights.keys()
    for name in ("embedding.weight", "encoder.layers.1.self_attention.key.weight"):
        np.testing.assert_array_equal(network.weights[name], expected.weights[name])
