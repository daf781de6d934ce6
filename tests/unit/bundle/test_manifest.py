from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, load_manifest, open_bundle
from dragoman_service.bundle.manifest import Manifest, Tokenization
from dragoman_service.errors import BundleError
from tests.unit.bundle.bundle_files import ALL_FILES, HALVES, change_manifest, describe_no_attention

_MANY: dict[str, Any] = {
    "sources": {"en": [4], "de": [5], "zh-Hant": [6]},
    "targets": {"en": {"target_prefix": [4]}, "de": {"source_prefix": [7], "target_prefix": [5]}, "fr": {}},
}

_REQUIRED = ("name", "limits", "files", "licence")

_Change = Callable[[dict[str, Any]], object]


def _set(*path: str, **values: Any) -> _Change:
    """Return a change of the fields of the section at a path."""

    def change(fields: dict[str, Any]) -> None:
        for name in path:
            fields = fields[name]
        fields.update(values)

    return change


def _languages(**changed: Any) -> _Change:
    return _set(schema_version=5, tokenization={"languages": {**_MANY, **changed}})


def test_a_manifest_survives_being_written_and_read(directory: Path) -> None:
    manifest = load_manifest(directory)

    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")

    assert load_manifest(directory) == manifest


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set(schema_version=8, novelty=True), "schema_version is 8, expected 1 or 2 or 3 or 4 or 5 or 6 or 7"),
        *((lambda fields, name=name: fields.pop(name), f"{name} is 'missing', expected a value") for name in _REQUIRED),
        (_set("limits", max_beam=9), r"limits\.max_beam is 9, expected only known fields"),
        (_set("limits", max_source_tokens=0), r"limits\.max_source_tokens is 0"),
        (_set("limits", max_source_tokens="16"), r"limits\.max_source_tokens is '16'"),
        (_set(source_language="english text"), "source_language is 'english text'"),
        (_set(version=".."), r"version is '\.\.'"),
        (_set("architecture", norm="none"), r"architecture\.norm is 'none'"),
        (_set("architecture", num_heads=3), "d_model 4 is not a multiple of num_heads 3"),
        (_set("special_ids", unk=2), "two special tokens share an id"),
        (_set("special_ids", unk=1), "two special tokens share an id"),
        (_set("special_ids", unk=8), "outside the vocabulary"),
        (
            _set("architecture", source_vocabulary_size=3, tied_embeddings="decoder"),
            "outside the source vocabulary",
        ),
        (_set(tokenization={"target_prefix": [8]}), "of a prefix is outside the vocabulary"),
        (_set(tokenization={"source_pieces": "s.json"}), "source_pieces requires pieces"),
        (_set(tokenization={"pieces": "../p.json"}), r"tokenization\.pieces is '\.\./p\.json'"),
        (_set(tokenization={"pieces": "p.json"}), r"missing checksum of \['p.json'\]"),
        (_set(default_precision="int4"), r"'int4' is not one of \['fp32'\]"),
        (_set(precisions={}), "precisions is {}"),
        (lambda fields: fields["files"].pop("decoder.onnx"), r"missing checksum of \['decoder.onnx'\]"),
        (lambda fields: fields["tensors"]["fp32"]["encoder"]["inputs"].clear(), "tensors differ"),
        (lambda fields: fields["tensors"]["fp32"]["attention"]["inputs"].clear(), "tensors differ"),
        (_set("tensors", "fp32", "encoder", **HALVES), "tensors differ"),
        (
            lambda fields: fields["tensors"].update(fp16=fields["tensors"].pop("fp32")),
            r"\['fp16'\] differ from precisions \['fp32'\]",
        ),
        (describe_no_attention, "tensors differ"),
        (_set("precisions", "fp32", weights="lost.bin"), r"missing checksum of \['lost.bin'\]"),
        (_set("precisions", "fp32", weights="../lost.bin"), r"weights is '\.\./lost\.bin'"),
        *(
            (_set("precisions", "fp32", **{graph: "graph.ORT"}), rf"{graph} is 'graph.ORT', expected an ONNX graph")
            for graph in ("encoder", "decoder", "attention")
        ),
        *(
            (_set(tokenizer=name), "tokenizer is")
            for name in ("../secret", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "", "a\n")
        ),
        (_set("files", **{"../secret": {"sha256": "0" * 64, "bytes": 0}}), r"\.\./secret"),
        (_set(tokenization={"languages": _MANY}, source_language="fr"), "fr to de is not one"),
        (_set(tokenization={"languages": _MANY, "source_prefix": [4]}), "source_prefix and target_prefix"),
        (_languages(sources={"en": [9999]}), "a token of a prefix is outside"),
        (_languages(sources={"en": [], "EN": []}), "languages.sources.EN.\\[key\\]"),
        (_languages(sources={"en": [], "zh-hant": [], "zh-Hant": []}), "two languages"),
        (_languages(sources={}), "languages.sources is {}"),
        (_languages(pairs=[["en", "it"]]), "en to it has an unlisted language"),
    ],
)
def test_invalid_manifest_is_rejected(directory: Path, change: _Change, fault: str) -> None:
    change_manifest(directory, change)

    with pytest.raises(BundleError, match=fault):
        open_bundle(directory)


@pytest.mark.parametrize("start", [0, 2])
def test_padding_and_eos_are_allowed_as_first_decoder_input(directory: Path, start: int) -> None:
    change_manifest(directory, _set("special_ids", bos=start))

    assert open_bundle(directory).manifest.special_ids.bos == start


def test_multilingual_bundle_has_pairs_and_prefixes(directory: Path) -> None:
    change_manifest(directory, _languages())

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


def test_explicit_pairs_replace_the_default_pairs(directory: Path) -> None:
    pairs = [["en", "de"], ["de", "en"], ["en", "en"]]
    change_manifest(directory, _languages(pairs=pairs))

    manifest = open_bundle(directory).manifest

    assert set(manifest.languages().pairs_served()) == {("en", "de"), ("de", "en"), ("en", "en")}
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_bundle_of_version_3_has_one_tokenizer(directory: Path) -> None:
    assert open_bundle(directory).manifest.tokenization == Tokenization()


def test_bundle_of_version_2_has_no_description_of_int8_weights(directory: Path) -> None:
    change_manifest(directory, _set(schema_version=2, precisions={"fp32": {**ALL_FILES}}))

    assert open_bundle(directory).int8_weights("fp32") is None


def test_bundle_of_version_1_has_no_attention_graph(directory: Path) -> None:
    def age(fields: dict[str, Any]) -> None:
        described = {**fields["tensors"]["fp32"]}
        described.pop("attention")
        fields.update(schema_version=1, tensors=described)

    change_manifest(directory, age)

    bundle = open_bundle(directory)

    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph")
    assert bundle.manifest.tensors["fp32"].float_type == "float32"
    with pytest.raises(BundleError, match=r"precisions\.fp32\.attention is None, expected a graph"):
        bundle.attention_path("fp32")


def test_bundle_with_attention_graph_and_weights_file_opens(directory: Path) -> None:
    change_manifest(directory, _set(precisions={"fp32": {**ALL_FILES}}))

    bundle = open_bundle(directory)

    assert bundle.attention_path("fp32") == directory / "attention.onnx"
    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph" + b"weights")


def test_each_precision_has_its_own_cache_type(directory: Path) -> None:
    def add_halves(fields: dict[str, Any]) -> None:
        fields["precisions"].update(fp16={**ALL_FILES})
        fields["tensors"].update(fp16=graph_tensors(1, "float16").model_dump())

    change_manifest(directory, add_halves)

    tensors = load_manifest(directory).tensors

    assert {name: tensors[name].float_type for name in tensors} == {"fp32": "float32", "fp16": "float16"}
