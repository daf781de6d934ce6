from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman_export.errors import ImportFormatError
from dragoman_export.onnx_export.int8_weights import describe_weights, int8_scales
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_export.onnx_export.write import WeightsFile
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.bundle.int8_weights import NetworkWeights, StoredTensor
from tests.tiny_bundle import build_tiny_bundle

_PARTS = ("encoder", "decoder")  # In the order of `Bundle.graph_paths`.


def described(bundle: Bundle) -> dict[str, NetworkWeights]:
    """Return the described weights of each graph."""
    weights = bundle.int8_weights("int8")
    assert weights is not None
    assert weights.encoder is not None
    return {"encoder": weights.encoder, "decoder": weights.decoder}


def graphs(bundle: Bundle) -> dict[str, ir.Model]:
    return {part: ir.load(path) for part, path in zip(_PARTS, bundle.graph_paths("int8"), strict=True)}


def stored(model: ir.Model) -> dict[str, NDArray[Any]]:
    initializers = model.graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in initializers if value.const_value is not None}


def read(bundle: Bundle, tensor: StoredTensor) -> NDArray[Any]:
    content = (bundle.directory / "weights.int8.bin").read_bytes()[tensor.offset :][: tensor.num_bytes]
    return np.frombuffer(content, dtype=tensor.dtype).reshape(tensor.shape)


def assert_is_described(bundle: Bundle, networks: Mapping[str, NetworkWeights], models: Mapping[str, ir.Model]) -> None:
    """Compare every array of both graphs with the bytes at its described offset."""
    for part, network in networks.items():
        arrays = stored(models[part])
        weights = {name for name in arrays if name.startswith(("encoder.", "decoder.", "embedding.", "position"))}
        assert network.tensors.keys() == weights
        for name, tensor in network.tensors.items():
            np.testing.assert_array_equal(read(bundle, tensor), arrays[name])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_described_arrays_match_the_graph(tmp_path: Path, norm: Literal["pre", "post"]) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", norm=norm)

    assert_is_described(bundle, described(bundle), graphs(bundle))
    for network in described(bundle).values():
        assert set(network.activations.values()) == {None}  # scales by row


@pytest.mark.parametrize("name", ["de-en", "en-de"])
def test_bundled_model_is_described(name: str) -> None:
    bundle = open_bundle(Path(__file__).parents[4] / "deploy" / "models" / "dragoman_models" / name / "1")

    assert_is_described(bundle, described(bundle), graphs(bundle))
    for network in described(bundle).values():
        assert None not in network.activations.values()


@pytest.mark.parametrize("part", _PARTS)
def test_described_scales_match_the_graph(tmp_path: Path, part: str) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", is_calibrated=True)

    activations = described(bundle)[part].activations

    model = graphs(bundle)[part]
    arrays = stored(model)
    products = [node.inputs for node in model.graph if node.op_type == "MatMulIntegerToFloat"]
    paths = [str(inputs[1].name).removesuffix(".weight.int8") for inputs in products if inputs[1] is not None]
    if part == "decoder":
        paths[-1] = "embedding"  # transposed first
    names = [(str(inputs[2].name), str(inputs[4].name)) for inputs in products if inputs[2] and inputs[4]]
    expected = dict(zip(paths, [(arrays[scale].item(), arrays[zero].item()) for scale, zero in names], strict=True))
    assert {path: fixed and (fixed.scale, fixed.zero_point) for path, fixed in activations.items()} == expected
    rectified = {path for path, rounding in activations.items() if rounding is not None and rounding.zero_point == 0}
    assert rectified == {f"{part}.layers.{layer}.feed_forward.outer" for layer in range(2)}


@pytest.mark.parametrize("kind", ProductKind)
def test_graph_with_float_products_is_not_described(tmp_path: Path, kind: ProductKind) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", kept=frozenset({kind}))

    weights = bundle.int8_weights("int8")

    assert (weights is not None) == (kind is ProductKind.ENCODER)
    assert weights is None or weights.encoder is None
    assert bundle.int8_weights("fp32") is None


def _moved(tensor: ir.ExternalTensor, file: str, num_bytes: int) -> ir.ExternalTensor:
    offset, shape = (tensor.offset or 0) + num_bytes, ir.Shape(tensor.shape.numpy())
    name, folder = str(tensor.name), tensor.base_dir
    return ir.ExternalTensor(file, offset, tensor.length, tensor.dtype, shape=shape, name=name, base_dir=folder)


def _described_anew(models: Mapping[str, ir.Model], bundle: Bundle) -> dict[str, NetworkWeights]:
    weights, manifest = WeightsFile(bundle.directory / "weights.int8.bin"), bundle.manifest
    found = describe_weights(models["encoder"], models["decoder"], weights, manifest.architecture, manifest.limits)
    assert found is not None
    assert found.encoder is not None
    return {"encoder": found.encoder, "decoder": found.decoder}


def test_misaligned_array_is_stored_again(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",))
    path = bundle.directory / "weights.int8.bin"
    path.write_bytes(bytes(8) + path.read_bytes())
    models = graphs(bundle)
    for model in models.values():
        for value in model.graph.initializers.values():
            if isinstance(tensor := value.const_value, ir.ExternalTensor):
                value.const_value = _moved(tensor, path.name, 8)

    assert_is_described(bundle, _described_anew(models, bundle), models)


@pytest.mark.parametrize("part", _PARTS)
def test_array_in_another_file_is_rejected(tmp_path: Path, part: str) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",))
    models = graphs(bundle)
    value = models[part].graph.initializers["embedding.weight.int8"]
    assert isinstance(value.const_value, ir.ExternalTensor)
    value.const_value = _moved(value.const_value, "other.onnx", 0)

    with pytest.raises(ImportFormatError, match=r"embedding.weight.int8 is in other.onnx: expected weights.int8"):
        _described_anew(models, bundle)


def test_product_without_quantized_input_is_rejected(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), is_calibrated=True)
    model = graphs(bundle)["decoder"]
    node = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    node.op_type = "Cast"

    with pytest.raises(ImportFormatError, match="is not quantized"):
        int8_scales(model)
