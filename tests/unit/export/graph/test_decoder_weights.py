from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from export.errors import ImportFormatError
from export.graph.decoder_weights import describe_decoder, int8_scales
from export.graph.mixed import ProductKind
from export.graph.write import WeightsFile
from service.bundle import Bundle, DecoderWeights, StoredTensor, open_bundle
from tests.tiny_bundle import build_tiny_bundle


def described(bundle: Bundle) -> DecoderWeights:
    weights = bundle.decoder_weights("int8")
    assert weights is not None
    return weights


def stored(model: ir.Model) -> dict[str, NDArray[Any]]:
    initializers = model.graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in initializers if value.const_value is not None}


def read(bundle: Bundle, tensor: StoredTensor) -> NDArray[Any]:
    content = (bundle.directory / "weights.int8.bin").read_bytes()[tensor.offset :][: tensor.num_bytes]
    return np.frombuffer(content, dtype=tensor.dtype).reshape(tensor.shape)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("is_calibrated", [False, True])
def test_every_array_is_found_where_it_is_said_to_lie(
    tmp_path: Path, norm: Literal["pre", "post"], *, is_calibrated: bool
) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", norm=norm, is_calibrated=is_calibrated)

    assert_is_described(bundle)


def test_the_model_that_ships_is_described() -> None:
    bundle = open_bundle(Path(__file__).parents[4] / "deploy" / "models" / "en-de" / "1")

    assert_is_described(bundle)
    assert None not in described(bundle).activations.values()


def assert_is_described(bundle: Bundle) -> None:
    """Compare every array of the decoder graph with what lies where the description says."""
    tensors = described(bundle).tensors
    arrays = stored(ir.load(bundle.graph_paths("int8")[1]))
    weights = {name for name in arrays if name.startswith(("decoder.", "embedding.", "position"))}
    assert tensors.keys() == weights
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read(bundle, tensor), arrays[name])


def test_the_scales_are_those_of_the_graph(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", is_calibrated=True)

    activations = described(bundle).activations

    model = ir.load(bundle.graph_paths("int8")[1])
    arrays = stored(model)
    products = [node.inputs for node in model.graph if node.op_type == "MatMulIntegerToFloat"]
    paths = [str(inputs[1].name).removesuffix(".weight.int8") for inputs in products if inputs[1] is not None]
    paths[-1] = "embedding"  # transposed first
    names = [(str(inputs[2].name), str(inputs[4].name)) for inputs in products if inputs[2] and inputs[4]]
    expected = dict(zip(paths, [(arrays[scale].item(), arrays[zero].item()) for scale, zero in names], strict=True))
    assert {path: fixed and (fixed.scale, fixed.zero_point) for path, fixed in activations.items()} == expected
    rectified = {path for path, rounding in activations.items() if rounding is not None and rounding.zero_point == 0}
    assert rectified == {"decoder.layers.0.feed_forward.outer", "decoder.layers.1.feed_forward.outer"}


def test_products_with_a_scale_for_each_row_have_none_that_is_fixed(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny")

    assert set(described(bundle).activations.values()) == {None}


@pytest.mark.parametrize("kind", ProductKind)
def test_a_decoder_with_products_in_floats_is_not_described(tmp_path: Path, kind: ProductKind) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", kept=frozenset({kind}))

    assert (bundle.decoder_weights("int8") is not None) == (kind is ProductKind.ENCODER)
    assert bundle.decoder_weights("fp32") is None


def test_an_array_at_an_odd_place_is_stored_anew(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",))
    path = bundle.directory / "weights.int8.bin"
    path.write_bytes(bytes(8) + path.read_bytes())
    model = ir.load(bundle.graph_paths("int8")[1])
    for value in model.graph.initializers.values():
        if isinstance(tensor := value.const_value, ir.ExternalTensor):
            value.const_value = _moved(tensor, path.name, 8)

    weights = _described_anew(model, bundle, path)

    assert weights is not None
    for name, array in stored(model).items():
        if name in weights.tensors:
            np.testing.assert_array_equal(read(bundle, weights.tensors[name]), array)


def test_an_array_in_another_file_is_refused(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",))
    model = ir.load(bundle.graph_paths("int8")[1])
    value = model.graph.initializers["embedding.weight.int8"]
    assert isinstance(value.const_value, ir.ExternalTensor)
    value.const_value = _moved(value.const_value, "encoder.int8.onnx", 0)

    with pytest.raises(
        ImportFormatError, match=r"embedding.weight.int8 is in encoder.int8.onnx: expected weights.int8"
    ):
        _described_anew(model, bundle, bundle.directory / "weights.int8.bin")


def test_a_product_of_activations_that_nobody_rounded_is_refused(tmp_path: Path) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), is_calibrated=True)
    model = ir.load(bundle.graph_paths("int8")[1])
    node = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    node.op_type = "Cast"

    with pytest.raises(ImportFormatError, match="does not take activations that were rounded before"):
        int8_scales(model)


def _moved(tensor: ir.ExternalTensor, file: str, num_bytes: int) -> ir.ExternalTensor:
    """Return the same array, so many bytes later in a file."""
    return ir.ExternalTensor(
        file,
        (tensor.offset or 0) + num_bytes,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=str(tensor.name),
        base_dir=tensor.base_dir,
    )


def _described_anew(model: ir.Model, bundle: Bundle, path: Path) -> DecoderWeights | None:
    return describe_decoder(model, WeightsFile(path), bundle.manifest.architecture, bundle.manifest.limits)
