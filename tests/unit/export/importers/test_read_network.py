from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dragoman_export.importers.bundle import read_network, read_roundings
from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import FloatType
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary


@pytest.fixture(scope="module")
def expected() -> Network:
    return Network.of(tiny_model(len(tiny_vocabulary())))


@pytest.mark.parametrize(("precision", "float_type"), [("fp32", "float32"), ("fp16", "float16")])
def test_weights_of_a_bundle_are_rounded_weights(
    tmp_path: Path, expected: Network, precision: str, float_type: FloatType
) -> None:
    network = read_network(build_tiny_bundle(tmp_path / "tiny", precisions=(precision,)))

    assert network.weights.keys() == expected.weights.keys()
    for name, array in network.weights.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected.weights[name].astype(float_type))


def test_float_weights_of_int8_graphs_are_unchanged(tmp_path: Path, expected: Network) -> None:
    kept = frozenset({ProductKind.ENCODER, ProductKind.VOCABULARY})

    network = read_network(build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), kept=kept))

    assert network.weights.keys() == expected.weights.keys()
    for name in ("embedding.weight", "encoder.layers.1.self_attention.key.weight"):
        np.testing.assert_array_equal(network.weights[name], expected.weights[name])


def _integers(path: Path) -> dict[str, np.ndarray]:
    initializers = ir.load(path).graph.initializers
    return {
        name: value.const_value.numpy()
        for name, value in initializers.items()
        if name.endswith(".int8") and value.const_value is not None
    }


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_int8_weights_survive_a_round_trip(tmp_path: Path, *, is_calibrated: bool) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), is_calibrated=is_calibrated)

    write_graphs(tmp_path, read_network(bundle), "int8", bundle.manifest.limits)

    for name in ("encoder.int8.onnx", "decoder.int8.onnx"):
        first, second = _integers(bundle.directory / name), _integers(tmp_path / name)
        assert first.keys() == second.keys()
        assert all((first[key] == second[key]).all() for key in first)


def test_activation_scales_are_read_back(tmp_path: Path) -> None:
    calibrated = build_tiny_bundle(tmp_path / "calibrated", is_calibrated=True)
    by_row = build_tiny_bundle(tmp_path / "by_row")

    roundings = read_roundings(calibrated)

    assert {"embedding", "encoder.layers.1.feed_forward.outer", "decoder.layers.0.cross_attention.key"} < set(roundings)
    assert all(one.scale > 0 for one in roundings.values())
    assert read_roundings(by_row) == {}
