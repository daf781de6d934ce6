import json
import math
import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.bundle import (
    MANIFEST_NAME,
    Architecture,
    CheckedFile,
    Limits,
    Manifest,
    Tokenization,
    attention_tensors,
    decoder_arrays,
    decoder_products,
    encoder_arrays,
    encoder_products,
    file_entry,
    graph_tensors,
    layer_names,
    load_manifest,
    open_bundle,
)
from service.errors import BundleError

_FILES = {"tokenizer.model": b"pieces", "encoder.onnx": b"encoder graph", "decoder.onnx": b"decoder graph"}
_MORE_FILES = {"attention.onnx": b"attention graph", "weights.bin": b"weights"}
_GRAPHS = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}
_HALVES = {"outputs": {"cross_key.0": "float16", "cross_value.0": "float16"}}
_ALL_FILES = {**_GRAPHS, "attention": "attention.onnx", "weights": "weights.bin"}


def _fields(directory: Path) -> dict[str, Any]:
    """Return a manifest of the files in a directory, as JSON has it."""
    return {
        "schema_version": 3,
        "name": "en-de",
        "version": "1",
        "source_language": "en",
        "target_language": "de",
        "architecture": {
            "vocabulary_size": 8,
            "d_model": 4,
            "num_heads": 2,
            "ffn_size": 8,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "norm": "pre",
        },
        "special_ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3},
        "limits": {"max_source_tokens": 16, "max_target_tokens": 16},
        "precisions": {"fp32": {**_GRAPHS}},
        "default_precision": "fp32",
        "tokenizer": "tokenizer.model",
        "tensors": {"fp32": graph_tensors(1, "float32").model_dump()},
        "files": {name: file_entry(directory / name).model_dump() for name in (*_FILES, *_MORE_FILES)},
        "provenance": {"exporter_version": "1", "checkpoint": "best.pt", "checkpoint_sha256": "0" * 64},
        "licence": "CC0-1.0",
        "attribution": "nobody",
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, content in {**_FILES, **_MORE_FILES}.items():
        (tmp_path / name).write_bytes(content)
    _write_manifest(tmp_path, _fields(tmp_path))
    return tmp_path


def _write_manifest(directory: Path, fields: object) -> None:
    (directory / MANIFEST_NAME).write_text(json.dumps(fields), encoding="utf-8")


def _change(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = _fields(directory)
    change(fields)
    _write_manifest(directory, fields)


def _describe_no_attention(fields: dict[str, Any]) -> None:
    """Leave an attention graph without a description."""
    fields.update(precisions={"fp32": {**_ALL_FILES}})
    fields["tensors"]["fp32"].update(attention=None)


def test_a_bundle_that_fits_its_manifest_opens(directory: Path) -> None:
    bundle = open_bundle(directory)

    assert bundle.manifest.name == "en-de"
    assert bundle.tokenizer_path == directory / "tokenizer.model"
    assert bundle.graph_paths("fp32") == (directory / "encoder.onnx", directory / "decoder.onnx")


def checked(directory: Path, *, changed: str = "") -> frozenset[CheckedFile]:
    """Return all files as if they had been checked, one of them before its last change."""
    files = load_manifest(directory).files
    return frozenset(
        CheckedFile(
            name=name,
            sha256=files[name].sha256,
            inode=status.st_ino,
            bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns - (name == changed),
        )
        for name, status in ((name, (directory / name).stat()) for name in files)
    )


def test_a_file_that_is_still_the_checked_one_is_not_read_again(directory: Path) -> None:
    encoder = directory / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))  # a reader would notice

    bundle = open_bundle(directory, checked_files=checked(directory))

    assert bundle.manifest == load_manifest(directory)


def test_a_file_that_has_changed_since_it_was_checked_is_checked_again(directory: Path) -> None:
    encoder = directory / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))

    with pytest.raises(BundleError, match=r"encoder\.onnx: SHA-256 is"):
        open_bundle(directory, checked_files=checked(directory, changed="encoder.onnx"))


def test_a_checked_file_with_another_checksum_in_the_manifest_is_read(directory: Path) -> None:
    before = checked(directory)
    _change(directory, lambda fields: fields["files"]["encoder.onnx"].update(sha256="0" * 64))

    with pytest.raises(BundleError, match=r"encoder\.onnx: SHA-256 is"):
        open_bundle(directory, checked_files=before)


@pytest.mark.parametrize(("age_ns", "is_known"), [(10**8, False), (2 * 10**9, True)])
def test_a_file_that_was_just_written_is_read_at_the_next_opening(directory: Path, age_ns: int, is_known: bool) -> None:
    """It may change again without another time of change."""
    files = checked(directory)
    now_ns = max(file.changed_ns for file in files) + age_ns

    bundle = open_bundle(directory, clock_ns=lambda: now_ns)

    assert (bundle.checked_files == files) is is_known


def test_a_manifest_survives_being_written_and_read(directory: Path) -> None:
    manifest = load_manifest(directory)

    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")

    assert load_manifest(directory) == manifest


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json: access is No such file"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"1"])
def test_a_manifest_that_is_no_json_object_is_refused(directory: Path, content: bytes) -> None:
    (directory / MANIFEST_NAME).write_bytes(content)

    with pytest.raises(BundleError, match=r"manifest\.json: content is .*, expected (JSON|an object)"):
        open_bundle(directory)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b" " * (1 << 20) + b"{}"])
def test_a_manifest_that_would_cost_much_to_parse_is_refused(directory: Path, content: bytes) -> None:
    (directory / MANIFEST_NAME).write_bytes(content)

    with pytest.raises(BundleError, match=r"manifest\.json: (content is recursion limit|access is 1048578 bytes)"):
        open_bundle(directory)


def test_a_manifest_of_millions_of_layers_is_refused_in_little_memory(directory: Path) -> None:
    _change(directory, lambda fields: fields["architecture"].update(num_decoder_layers=3_000_000))

    tracemalloc.start()
    with pytest.raises(BundleError, match=r"architecture\.num_decoder_layers is 3000000, expected .* 256"):
        open_bundle(directory)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1 << 20


def test_what_is_told_of_a_bundle_is_short(directory: Path) -> None:
    _change(directory, lambda fields: fields.update(attribution="x" * 100_000))

    with pytest.raises(BundleError, match="attribution is 'xxx") as caught:
        open_bundle(directory)

    assert len(str(caught.value)) < 2000


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # the path of a socket is short


def _link_out(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")
    path.resolve().write_bytes(_FILES.get(path.name, b"{}"))


@pytest.mark.parametrize("name", [MANIFEST_NAME, "tokenizer.model"])
@pytest.mark.parametrize(
    ("put", "told"),
    [
        (os.mkfifo, "no regular file"),
        (_make_socket, "No such device or address"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "a link that leads out of its directory"),
        (_link_out, "a link that leads out of its directory"),
    ],
    ids=["fifo", "socket", "directory", "loop", "device", "link"],
)
def test_what_is_no_regular_file_of_the_directory_is_named(
    tmp_path: Path, directory: Path, name: str, put: Callable[[Path], object], told: str
) -> None:
    (tmp_path / "bundle").mkdir()
    for path in [path for path in directory.iterdir() if path.is_file()]:
        path.rename(tmp_path / "bundle" / path.name)
    (tmp_path / "bundle" / name).unlink()
    put(tmp_path / "bundle" / name)

    with pytest.raises(BundleError, match=rf"{name}: access is {told}"):
        open_bundle(tmp_path / "bundle")


def test_a_link_within_the_directory_is_followed(directory: Path) -> None:
    """As of a volume that Kubernetes replaces as a whole."""
    (directory / ".data").mkdir()
    (directory / "encoder.onnx").rename(directory / ".data" / "encoder.onnx")
    (directory / "encoder.onnx").symlink_to(".data/encoder.onnx")

    assert open_bundle(directory).manifest.name == "en-de"


@pytest.mark.parametrize("graph", ["encoder", "decoder", "attention"])
def test_a_graph_in_the_format_of_onnx_runtime_is_refused(directory: Path, graph: str) -> None:
    _change(directory, lambda fields: fields["precisions"]["fp32"].update({graph: "graph.ORT"}))

    with pytest.raises(BundleError, match=rf"precisions\.fp32\.{graph} is 'graph.ORT', expected a graph in ONNX"):
        open_bundle(directory)


def test_another_schema_version_is_told_before_any_of_its_unknown_fields(directory: Path) -> None:
    _write_manifest(directory, {"schema_version": 6, "novelty": True})

    with pytest.raises(BundleError, match="schema_version is 6, expected 1 or 2 or 3 or 4 or 5"):
        open_bundle(directory)


@pytest.mark.parametrize("field", ["name", "limits", "files", "licence"])
def test_a_missing_field_is_named(directory: Path, field: str) -> None:
    _change(directory, lambda fields: fields.pop(field))

    with pytest.raises(BundleError, match=f"{field} is 'missing', expected a value"):
        open_bundle(directory)


def test_an_unknown_field_is_named_with_its_value(directory: Path) -> None:
    _change(directory, lambda fields: fields["limits"].update(max_beam=9))

    with pytest.raises(BundleError, match=r"limits\.max_beam is 9, expected no such field"):
        open_bundle(directory)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda fields: fields["limits"].update(max_source_tokens=0), r"limits\.max_source_tokens is 0"),
        (lambda fields: fields["limits"].update(max_source_tokens="16"), r"limits\.max_source_tokens is '16'"),
        (lambda fields: fields.update(source_language="english text"), "source_language is 'english text'"),
        (lambda fields: fields.update(version=".."), r"version is '\.\.'"),
        (lambda fields: fields["architecture"].update(norm="none"), r"architecture\.norm is 'none'"),
        (lambda fields: fields["architecture"].update(num_heads=3), "d_model 4 is no multiple of num_heads 3"),
        (lambda fields: fields["special_ids"].update(unk=2), "two special tokens share an id"),
        (lambda fields: fields["special_ids"].update(unk=1), "two special tokens share an id"),
        (lambda fields: fields["special_ids"].update(unk=8), "outside the vocabulary"),
        (
            lambda fields: fields["architecture"].update(source_vocabulary_size=3, tied_embeddings="decoder"),
            "outside the vocabulary of sources",
        ),
        (lambda fields: fields.update(tokenization={"target_prefix": [8]}), "of a prefix is outside the vocabulary"),
        (lambda fields: fields.update(tokenization={"source_pieces": "s.json"}), "source_pieces without pieces"),
        (lambda fields: fields.update(tokenization={"pieces": "../p.json"}), r"tokenization\.pieces is '\.\./p\.json'"),
        (lambda fields: fields.update(tokenization={"pieces": "p.json"}), r"no checksum of \['p.json'\]"),
        (lambda fields: fields.update(default_precision="int4"), r"'int4' is none of \['fp32'\]"),
        (lambda fields: fields.update(precisions={}), "precisions is {}"),
        (lambda fields: fields["files"].pop("decoder.onnx"), r"no checksum of \['decoder.onnx'\]"),
        (lambda fields: fields["tensors"]["fp32"]["encoder"]["inputs"].clear(), "tensors are not those"),
        (lambda fields: fields["tensors"]["fp32"]["attention"]["inputs"].clear(), "tensors are not those"),
        (lambda fields: fields["tensors"]["fp32"]["encoder"].update(_HALVES), "tensors are not those"),
        (
            lambda fields: fields["tensors"].update(fp16=fields["tensors"].pop("fp32")),
            r"tensors are those of \['fp16'\], precisions \['fp32'\]",
        ),
        (_describe_no_attention, "tensors are not those"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="lost.bin"), r"no checksum of \['lost.bin'\]"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="../lost.bin"), r"weights is '\.\./lost\.bin'"),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    directory: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    _change(directory, change)

    with pytest.raises(BundleError, match=told):
        open_bundle(directory)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "", "a\n"])
def test_a_file_name_that_leaves_the_directory_is_refused(directory: Path, name: str) -> None:
    _change(directory, lambda fields: fields.update(tokenizer=name))

    with pytest.raises(BundleError, match="tokenizer is"):
        open_bundle(directory)


def test_a_checksum_of_a_file_elsewhere_is_refused(directory: Path) -> None:
    _change(directory, lambda fields: fields["files"].update({"../secret": {"sha256": "0" * 64, "bytes": 0}}))

    with pytest.raises(BundleError, match=r"\.\./secret"):
        open_bundle(directory)


def test_a_missing_file_is_named(directory: Path) -> None:
    (directory / "decoder.onnx").unlink()

    with pytest.raises(BundleError, match=r"decoder\.onnx: access is No such file"):
        open_bundle(directory)


def test_a_file_of_another_size_is_named_with_both_sizes(directory: Path) -> None:
    (directory / "encoder.onnx").write_bytes(b"cut")

    with pytest.raises(BundleError, match=r"encoder\.onnx: size in bytes is 3, expected 13"):
        open_bundle(directory)


def test_a_changed_file_is_named_with_both_checksums(directory: Path) -> None:
    expected = file_entry(directory / "encoder.onnx").sha256
    (directory / "encoder.onnx").write_bytes(b"Encoder graph")

    with pytest.raises(BundleError, match=rf"encoder\.onnx: SHA-256 is [0-9a-f]{{64}}, expected {expected}"):
        open_bundle(directory)


def test_a_precision_that_is_not_there_is_told_with_those_that_are(directory: Path) -> None:
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match="precision is 'int8', expected one of fp32"):
        bundle.graph_paths("int8")


def test_layer_names_go_layer_by_layer() -> None:
    assert layer_names(("key", "value"), 2) == ("key.0", "value.0", "key.1", "value.1")


@pytest.mark.parametrize("start", [0, 2])
def test_decoding_may_start_from_padding_or_eos(directory: Path, start: int) -> None:
    _change(directory, lambda fields: fields["special_ids"].update(bos=start))

    assert open_bundle(directory).manifest.special_ids.bos == start


def test_files_of_the_tokenizer_are_checked_like_every_file(directory: Path) -> None:
    names = {"source_model": "weights.bin", "pieces": "attention.onnx"}
    _change(directory, lambda fields: fields.update(schema_version=4, tokenization={**names, "source_prefix": [7]}))

    manifest = open_bundle(directory).manifest

    assert {*_FILES, *names.values()} == manifest.named_files()
    assert manifest.tokenization.source_prefix == (7,)


_MANY: dict[str, Any] = {
    "sources": {"en": [4], "de": [5], "zh-Hant": [6]},
    "targets": {"en": {"target_prefix": [4]}, "de": {"source_prefix": [7], "target_prefix": [5]}, "fr": {}},
}


def test_a_bundle_of_many_languages_tells_its_pairs_and_their_prefixes(directory: Path) -> None:
    _change(directory, lambda fields: fields.update(schema_version=5, tokenization={"languages": _MANY}))

    manifest = open_bundle(directory).manifest

    assert set(manifest.languages().pairs_served()) == {
        *(("en", "de"), ("en", "fr"), ("de", "en"), ("de", "fr")),
        *(("zh-Hant", "en"), ("zh-Hant", "de"), ("zh-Hant", "fr")),
    }
    assert manifest.languages().find("zh-hant", "de") == ("zh-Hant", "de")
    assert manifest.languages().find("de", "de") is None
    assert manifest.tokenization.prefixes("en", "de") == ((4, 7), (5,))
    assert manifest.tokenization.prefixes("zh-Hant", "fr") == ((6,), ())
    assert manifest.tokenization.fixed_tokens() == (frozenset({4, 5, 6, 7}), frozenset({4, 5}))
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_pairs_may_be_told_one_by_one(directory: Path) -> None:
    pairs = [["en", "de"], ["de", "en"], ["en", "en"]]
    _change(directory, lambda fields: fields.update(tokenization={"languages": {**_MANY, "pairs": pairs}}))

    manifest = open_bundle(directory).manifest

    assert set(manifest.languages().pairs_served()) == {("en", "de"), ("de", "en"), ("en", "en")}
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"source_language": "fr"}, "fr to de is none of its pairs"),
        ({"tokenization": {"languages": _MANY, "source_prefix": [4]}}, "prefixes beside those of languages"),
        ({"tokenization": {"languages": {**_MANY, "sources": {"en": [9999]}}}}, "a token of a prefix is outside"),
        ({"tokenization": {"languages": {**_MANY, "sources": {"en": [], "EN": []}}}}, "languages.sources.EN.\\[key\\]"),
        (
            {"tokenization": {"languages": {**_MANY, "sources": {"en": [], "zh-hant": [], "zh-Hant": []}}}},
            "two languages",
        ),
        ({"tokenization": {"languages": {**_MANY, "sources": {}}}}, "languages.sources is {}"),
        ({"tokenization": {"languages": {**_MANY, "pairs": [["en", "it"]]}}}, "the pair of en and it has a language"),
    ],
)
def test_languages_that_do_not_fit_are_told(directory: Path, fields: dict[str, Any], told: str) -> None:
    changes = {"tokenization": {"languages": _MANY}, **fields}
    _change(directory, lambda manifest: manifest.update(schema_version=5, **changes))

    with pytest.raises(BundleError, match=told):
        open_bundle(directory)


def test_a_bundle_of_the_third_version_opens_and_has_one_tokenizer(directory: Path) -> None:
    assert open_bundle(directory).manifest.tokenization == Tokenization()


def test_a_bundle_of_the_second_version_opens_and_describes_no_int8_weights(directory: Path) -> None:
    _change(directory, lambda fields: fields.update(schema_version=2, precisions={"fp32": {**_ALL_FILES}}))

    assert open_bundle(directory).int8_weights("fp32") is None


def test_a_bundle_of_the_first_version_opens_and_lacks_attention(directory: Path) -> None:
    def age(fields: dict[str, Any]) -> None:
        described = {**fields["tensors"]["fp32"]}
        described.pop("attention")
        fields.update(schema_version=1, tensors=described)

    _change(directory, age)

    bundle = open_bundle(directory)

    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph")
    assert bundle.manifest.tensors["fp32"].float_type == "float32"
    with pytest.raises(BundleError, match=r"precisions\.fp32\.attention is None, expected a graph; export the model"):
        bundle.attention_path("fp32")


def test_a_bundle_with_attention_and_shared_weights_opens(directory: Path) -> None:
    _change(directory, lambda fields: fields.update(precisions={"fp32": {**_ALL_FILES}}))

    bundle = open_bundle(directory)

    assert bundle.attention_path("fp32") == directory / "attention.onnx"
    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph" + b"weights")


def test_shared_weights_are_checked_like_every_file(directory: Path) -> None:
    _change(directory, lambda fields: fields.update(precisions={"fp32": {**_ALL_FILES}}))
    (directory / "weights.bin").write_bytes(b"Weights")

    with pytest.raises(BundleError, match=r"weights\.bin: SHA-256 is"):
        open_bundle(directory)


def test_each_precision_says_the_type_of_its_own_cache(directory: Path) -> None:
    def add_halves(fields: dict[str, Any]) -> None:
        fields["precisions"].update(fp16={**_ALL_FILES})
        fields["tensors"].update(fp16=graph_tensors(1, "float16").model_dump())

    _change(directory, add_halves)

    tensors = load_manifest(directory).tensors

    assert {name: tensors[name].float_type for name in tensors} == {"fp32": "float32", "fp16": "float16"}


def test_only_keys_values_and_the_mask_are_halves() -> None:
    tensors = graph_tensors(1, "float16")

    types = {**tensors.encoder.outputs, **tensors.decoder.inputs, **tensors.decoder.outputs}
    halves = {name.partition(".")[0] for name, element_type in types.items() if element_type == "float16"}
    assert halves == {"cross_key", "cross_value", "self_key_pool", "self_value_pool", "ancestor_mask"}
    assert types["log_probs"] == "float32"
    assert set(attention_tensors(1, "float16").outputs.values()) == {"float32"}


def test_the_attention_graph_takes_no_values_of_the_last_layer() -> None:
    tensors = attention_tensors(2, "float32")

    assert "cross_value.0" in tensors.inputs
    assert "cross_key.1" in tensors.inputs
    assert "cross_value.1" not in tensors.inputs
    assert tuple(tensors.outputs) == ("cross_attention.0", "cross_attention.1")


_DESCRIBED = "weights.json"
_PARTS = ("decoder", "encoder")


def _layout(directory: Path, norm: str = "pre") -> dict[str, Any]:
    """Return a description of int8 weights that fits, as JSON has it, and make the file of weights as large."""
    manifest = _fields(directory)
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
    """Write what a bundle says of its int8 weights, with the right checksum."""
    (directory / _DESCRIBED).write_text(content, encoding="utf-8")
    fields = _fields(directory)
    fields["architecture"]["norm"] = norm
    fields.update(precisions={"fp32": {**_ALL_FILES, "int8_weights": _DESCRIBED}})
    fields["files"][_DESCRIBED] = file_entry(directory / _DESCRIBED).model_dump()
    _write_manifest(directory, fields)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_int8_weights_that_fit_are_read(directory: Path, norm: str) -> None:
    layout = _layout(directory, norm)
    _write_described(directory, json.dumps(layout), norm)

    weights = open_bundle(directory).int8_weights("fp32")

    assert weights is not None
    assert json.loads(weights.model_dump_json()) == layout
    assert weights.encoder is not None
    for part, network in (("decoder", weights.decoder), ("encoder", weights.encoder)):
        assert network.tensors[f"{part}.layers.0.feed_forward.inner.weight.int8"].num_bytes == 4 * 8
        assert network.tensors[f"{part}.layers.0.feed_forward.inner.bias"].num_bytes == 8 * 4
        assert (f"{part}.norm.weight" in network.tensors) is (norm == "pre")


def test_an_encoder_may_be_left_out_and_a_decoder_not(directory: Path) -> None:
    layout = _layout(directory)
    _write_described(directory, json.dumps({**layout, "encoder": None}))
    weights = open_bundle(directory).int8_weights("fp32")
    assert weights is not None
    assert weights.encoder is None

    _write_described(directory, json.dumps({**layout, "decoder": None}))
    with pytest.raises(BundleError, match=r"weights\.json: decoder is None"):
        open_bundle(directory).int8_weights("fp32")


def test_the_encoder_of_several_layers_projects_for_each_layer_of_the_decoder() -> None:
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
    """Return the one name that ends so: it begins with the part, encoder or decoder."""
    (name,) = [name for name in named if name.endswith(suffix)]
    return name


def _tensor(suffix: str, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda part: part["tensors"][_only(part["tensors"], suffix)].update(fields)


def _scale(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda part: part["activations"][_only(part["activations"], _PRODUCT)].update(fields)


@pytest.mark.parametrize("part", _PARTS)
@pytest.mark.parametrize(
    ("change", "told"),
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
        (_tensor(_BIAS, strides=[1]), r"outer\.bias\.strides is \[1\], expected no such field"),
        (
            lambda part: part["tensors"].pop("embedding.weight.int8"),
            r"tensors\.embedding\.weight\.int8 is missing, exp",
        ),
        (lambda part: part["tensors"].update(more=part["tensors"]["position_encodings"]), r"tensors\.more is there"),
        (lambda part: part["activations"].pop(_only(part["activations"], _PRODUCT)), r"feed_forward\.inner is missing"),
        (lambda part: part["activations"].update(more=None), r"activations\.more is there, expected no such name"),
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
        (_scale(zero_point=-1), r"inner\.zero_point is -1"),
    ],
)
def test_int8_weights_that_do_not_fit_are_refused(
    directory: Path, part: str, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    layout = _layout(directory)
    change(layout[part])
    _write_described(directory, json.dumps(layout))
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match=rf"weights\.json: {part}\..*{told}"):
        bundle.int8_weights("fp32")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "content is EOF"),
        ('{"tensors": {', "content is EOF"),
        ("[" * 100_000, "content is recursion limit"),
        ("[]", "content is list, expected an object"),
        ("{}", "decoder is 'missing', expected a value"),
        ("\0", "content is expected value"),
        (" " * (4 << 20) + "{}", "access is 4194306 bytes, more than 4194304"),
    ],
)
def test_damaged_int8_weights_are_refused(directory: Path, content: str, told: str) -> None:
    _write_described(directory, content)
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match=rf"weights\.json: {told}"):
        bundle.int8_weights("fp32")


def test_int8_weights_without_a_file_of_weights_are_refused(directory: Path) -> None:
    _write_described(directory, json.dumps(_layout(directory)))
    fields = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    fields["precisions"]["fp32"].pop("weights")
    _write_manifest(directory, fields)

    with pytest.raises(
        BundleError, match=r"precisions\.fp32 is .*describes the file of weights, of which there is none"
    ):
        open_bundle(directory)


def test_arrays_of_int8_weights_may_be_at_the_same_place(directory: Path) -> None:
    layout = _layout(directory)
    layout["encoder"]["tensors"]["encoder.norm.bias"]["offset"] = layout["decoder"]["tensors"]["decoder.norm.bias"][
        "offset"
    ]
    _write_described(directory, json.dumps(layout))

    assert open_bundle(directory).int8_weights("fp32") is not None
