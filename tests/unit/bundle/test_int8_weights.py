import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.bundle.architecture import Architecture, Limits
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry, open_bundle
from dragoman_service.bundle.int8_weights import decoder_arrays, decoder_products, encoder_arrays, encoder_products
from dragoman_service.errors import BundleError
from tests.unit.bundle.bundle_files import ALL_FILES, manifest_fields, write_manifest

_DESCRIBED = "weights.json"
_PARTS = ("decoder", "encoder")


def _layout(directory: Path, norm: str = "pre") -> dict[str, Any]:
    """Return a valid description of int8 weights as JSON objects, and write a weights file of the right size."""
    manifest = manifest_fields(directory)
    architecture = Architecture(**{**manifest["architecture"], "norm": norm})
    limits, layout, offset = Limits(**manifest["limits"]), {}, 0
    for part, arrays, products in (
        ("decoder", decoder_arrays(architecture, limits), decoder_products(architecture)),
        ("encoder", encoder_arrays(architecture, limits), encoder_products(architecture)),
    ):
        tensors: dict[str, Any] = {}
        for name, (dtype, shape) in arrays.items():
            tensors[name] = {"dtype": dtype, "shape": list(shape), "offset": offset}
            offset += -(-math.prod(shape) * 4 // 64) * 64
        activations: dict[str, Any] = {path: {"scale": 0.5, "zero_point": 128} for path in products}
        activations[max(activations)] = None
        layout[part] = {"tensors": tensors, "activations": activations}
    (directory / "weights.bin").write_bytes(bytes(offset))
    return layout


def _write_described(directory: Path, content: str, norm: str = "pre") -> None:
    """Write a description of int8 weights and its checksum."""
    (directory / _DESCRIBED).write_text(content, encoding="utf-8")
    fields = manifest_fields(directory)
    fields["architecture"]["norm"] = norm
    fields.update(precisions={"fp32": {**ALL_FILES, "int8_weights": _DESCRIBED}})
    fields["files"][_DESCRIBED] = file_entry(directory / _DESCRIBED).model_dump()
    write_manifest(directory, fields)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_valid_int8_weights_are_read(directory: Path, norm: str) -> None:
    layout = _layout(directory, norm)
    _write_described(directory, json.dumps(layout), norm)

    weights = open_bundle(directory).int8_weights("fp32")

    assert weights is not None
    assert json.loads(weights.model_dump_json(exclude_unset=True)) == layout
    assert weights.encoder is not None
    for part, network in (("decoder", weights.decoder), ("encoder", weights.encoder)):
        assert network.tensors[f"{part}.layers.0.feed_forward.inner.weight.int8"].num_bytes == 4 * 8
        assert network.tensors[f"{part}.layers.0.feed_forward.inner.bias"].num_bytes == 8 * 4
        assert (f"{part}.norm.weight" in network.tensors) is (norm == "pre")


def test_description_of_encoder_is_optional_and_of_decoder_required(directory: Path) -> None:
    layout = _layout(directory)
    _write_described(directory, json.dumps({**layout, "encoder": None}))
    weights = open_bundle(directory).int8_weights("fp32")
    assert weights is not None
    assert weights.encoder is None

    _write_described(directory, json.dumps({**layout, "decoder": None}))
    with pytest.raises(BundleError, match=r"weights\.json: decoder is None"):
        open_bundle(directory).int8_weights("fp32")


def test_encoder_computes_cross_keys_and_values_of_each_decoder_layer() -> None:
    architecture = Architecture(
        vocabulary_size=8, d_model=4, num_heads=2, ffn_size=8, num_encoder_layers=3, num_decoder_layers=2, norm="post"
    )

    arrays = encoder_arrays(architecture, Limits(max_source_tokens=5, max_target_tokens=9))

    assert arrays["decoder.layers.0.cross_attention.key.fused.weight.int8"] == ("int8", (4, 2 * 2 * 4))
    assert arrays["encoder.layers.2.feed_forward.outer.weight.int8"] == ("int8", (8, 4))
    assert arrays["position_encodings"] == ("float32", (5, 4))


_BIAS = ".layers.0.feed_forward.outer.bias"
_LAST = ".norm.bias"
_PRODUCT = ".layers.0.feed_forward.inner"


def _only(named: dict[str, Any], suffix: str) -> str:
    """Return the only name with a suffix; names start with `encoder` or `decoder`."""
    (name,) = [name for name in named if name.endswith(suffix)]
    return name


def _tensor(suffix: str, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda part: part["tensors"][_only(part["tensors"], suffix)].update(fields)


def _scale(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda part: part["activations"][_only(part["activations"], _PRODUCT)].update(fields)


@pytest.mark.parametrize("part", _PARTS)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_tensor(_LAST, offset=1 << 20), r"norm\.bias is 16 bytes from 1048576, expected within the \d+ bytes of weig"),
        (_tensor(_LAST, offset=-64), r"norm\.bias\.offset is -64, expected .* greater than or equal to 0"),
        (_tensor(_LAST, offset=4), r"norm\.bias\.offset is 4, expected .* multiple of 64"),
        (_tensor(_LAST, offset=1 << 62), r"norm\.bias\.offset is 46\d+, expected .* less than or equal to"),
        (_tensor(_LAST, offset=64.0), r"norm\.bias\.offset is 64\.0"),
        (_tensor(_LAST, offset=True), r"norm\.bias\.offset is True"),
        (_tensor(_BIAS, shape=[1 << 40]), r"outer\.bias\.shape\.0 is 1099511627776"),
        (
            _tensor(_BIAS, shape=[1 << 24]),
            r"outer\.bias is \('float32', \(16777216,\)\), expected \('float32', \(4,\)\)",
        ),
        (_tensor(_BIAS, shape=[0]), r"outer\.bias\.shape\.0 is 0"),
        (_tensor(_BIAS, shape=[]), r"outer\.bias\.shape is \[\]"),
        (_tensor(_BIAS, shape=[1, 2, 2]), r"outer\.bias\.shape is \[1, 2, 2\]"),
        (_tensor(_BIAS, shape=[2, 2]), r"outer\.bias is \('float32', \(2, 2\)\)"),
        (_tensor(_BIAS, dtype="int8"), r"outer\.bias is \('int8', \(4,\)\), expected \('float32', \(4,\)\)"),
        (_tensor(_BIAS, dtype="float64"), r"outer\.bias\.dtype is 'float64'"),
        (_tensor(_BIAS, strides=[1]), r"outer\.bias\.strides is \[1\], expected only known fields"),
        (
            lambda part: part["tensors"].pop("embedding.weight.int8"),
            r"tensors\.embedding\.weight\.int8 is missing, exp",
        ),
        (
            lambda part: part["tensors"].update(more=part["tensors"]["position_encodings"]),
            r"tensors\.more is an unknown name",
        ),
        (lambda part: part["activations"].pop(_only(part["activations"], _PRODUCT)), r"feed_forward\.inner is missing"),
        (lambda part: part["activations"].update(more=None), r"activations\.more is an unknown name"),
        (lambda part: part["activations"].update({f"{n}": None for n in range(5000)}), "activations is .*2048"),
        (lambda part: part["tensors"].update({"x" * 9999: {}}), "at most 200 characters"),
        (lambda part: part.pop("activations"), "activations is 'missing', expected a value"),
        (_scale(scale=0.0), r"inner\.scale is 0\.0"),
        (_scale(scale=-1.0), r"inner\.scale is -1\.0"),
        (_scale(scale=1e-40), r"inner\.scale is 1e-40"),
        (_scale(scale=1e39), r"inner\.scale is 1e\+39"),
        (_scale(scale=math.inf), r"inner\.scale is inf"),
        (_scale(scale=math.nan), r"inner\.scale is nan"),
        (_scale(scale="1"), r"inner\.scale is '1'"),
        (_scale(zero_point=256), r"inner\.zero_point is 256"),
        (_scale(levels=128), r"inner\.levels is 128"),
        (_scale(levels=127, zero_point=128), "zero_point 128 exceeds levels 127"),
        (_scale(zero_point=-1), r"inner\.zero_point is -1"),
    ],
)
def test_inconsistent_int8_weights_are_rejected(
    directory: Path, part: str, change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    layout = _layout(directory)
    change(layout[part])
    _write_described(directory, json.dumps(layout))
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match=rf"weights\.json: {part}\..*{fault}"):
        bundle.int8_weights("fp32")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "content is EOF"),
        ('{"tensors": {', "content is EOF"),
        ("[" * 100_000, "content is recursion limit"),
        ("[]", "content is list, expected an object"),
        ("{}", "decoder is 'missing', expected a value"),
        ("\0", "content is expected value"),
        (" " * (4 << 20) + "{}", "4194306 bytes, more than 4194304"),
    ],
)
def test_damaged_int8_weights_are_rejected(directory: Path, content: str, fault: str) -> None:
    _write_described(directory, content)
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match=rf"weights\.json: {fault}"):
        bundle.int8_weights("fp32")


def test_int8_weights_without_weights_file_are_rejected(directory: Path) -> None:
    _write_described(directory, json.dumps(_layout(directory)))
    fields = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    fields["precisions"]["fp32"].pop("weights")
    write_manifest(directory, fields)

    with pytest.raises(BundleError, match=r"precisions\.fp32 is .*requires a weights file"):
        open_bundle(directory)


def test_arrays_of_int8_weights_may_share_an_offset(directory: Path) -> None:
    layout = _layout(directory)
    layout["encoder"]["tensors"]["encoder.norm.bias"]["offset"] = layout["decoder"]["tensors"]["decoder.norm.bias"][
        "offset"
    ]
    _write_described(directory, json.dumps(layout))

    assert open_bundle(directory).int8_weights("fp32") is not None
