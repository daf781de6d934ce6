from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, load_manifest, open_bundle
from dragoman_service.bundle.manifest import Manifest, Tokenization
from dragoman_service.errors import BundleError
from tests.unit.bundle.bundle_files import ALL_FILES, HALVES, change_manifest, describe_no_attention, write_manifest


def test_a_manifest_survives_being_written_and_read(directory: Path) -> None:
    manifest = load_manifest(directory)

    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")

    assert load_manifest(directory) == manifest


@pytest.mark.parametrize("graph", ["encoder", "decoder", "attention"])
def test_graph_in_ort_format_is_rejected(directory: Path, graph: str) -> None:
    change_manifest(directory, lambda fields: fields["precisions"]["fp32"].update({graph: "graph.ORT"}))

    with pytest.raises(BundleError, match=rf"precisions\.fp32\.{graph} is 'graph.ORT', expected an ONNX graph"):
        open_bundle(directory)


def test_another_schema_version_is_told_before_any_of_its_unknown_fields(directory: Path) -> None:
    write_manifest(directory, {"schema_version": 6, "novelty": True})

    with pytest.raises(BundleError, match="schema_version is 6, expected 1 or 2 or 3 or 4 or 5"):
        open_bundle(directory)


@pytest.mark.parametrize("field", ["name", "limits", "files", "licence"])
def test_a_missing_field_is_named(directory: Path, field: str) -> None:
    change_manifest(directory, lambda fields: fields.pop(field))

    with pytest.raises(BundleError, match=f"{field} is 'missing', expected a value"):
        open_bundle(directory)


def test_unknown_field_is_rejected_with_its_value(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields["limits"].update(max_beam=9))

    with pytest.raises(BundleError, match=r"limits\.max_beam is 9, expected only known fields"):
        open_bundle(directory)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda fields: fields["limits"].update(max_source_tokens=0), r"limits\.max_source_tokens is 0"),
        (lambda fields: fields["limits"].update(max_source_tokens="16"), r"limits\.max_source_tokens is '16'"),
        (lambda fields: fields.update(source_language="english text"), "source_language is 'english text'"),
        (lambda fields: fields.update(version=".."), r"version is '\.\.'"),
        (lambda fields: fields["architecture"].update(norm="none"), r"architecture\.norm is 'none'"),
        (lambda fields: fields["architecture"].update(num_heads=3), "d_model 4 is not a multiple of num_heads 3"),
        (lambda fields: fields["special_ids"].update(unk=2), "two special tokens share an id"),
        (lambda fields: fields["special_ids"].update(unk=1), "two special tokens share an id"),
        (lambda fields: fields["special_ids"].update(unk=8), "outside the vocabulary"),
        (
            lambda fields: fields["architecture"].update(source_vocabulary_size=3, tied_embeddings="decoder"),
            "outside the source vocabulary",
        ),
        (lambda fields: fields.update(tokenization={"target_prefix": [8]}), "of a prefix is outside the vocabulary"),
        (lambda fields: fields.update(tokenization={"source_pieces": "s.json"}), "source_pieces requires pieces"),
        (lambda fields: fields.update(tokenization={"pieces": "../p.json"}), r"tokenization\.pieces is '\.\./p\.json'"),
        (lambda fields: fields.update(tokenization={"pieces": "p.json"}), r"missing checksum of \['p.json'\]"),
        (lambda fields: fields.update(default_precision="int4"), r"'int4' is not one of \['fp32'\]"),
        (lambda fields: fields.update(precisions={}), "precisions is {}"),
        (lambda fields: fields["files"].pop("decoder.onnx"), r"missing checksum of \['decoder.onnx'\]"),
        (lambda fields: fields["tensors"]["fp32"]["encoder"]["inputs"].clear(), "tensors differ"),
        (lambda fields: fields["tensors"]["fp32"]["attention"]["inputs"].clear(), "tensors differ"),
        (lambda fields: fields["tensors"]["fp32"]["encoder"].update(HALVES), "tensors differ"),
        (
            lambda fields: fields["tensors"].update(fp16=fields["tensors"].pop("fp32")),
            r"\['fp16'\] differ from precisions \['fp32'\]",
        ),
        (describe_no_attention, "tensors differ"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="lost.bin"), r"missing checksum of \['lost.bin'\]"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="../lost.bin"), r"weights is '\.\./lost\.bin'"),
    ],
)
def test_invalid_value_is_rejected(directory: Path, change: Callable[[dict[str, Any]], object], fault: str) -> None:
    change_manifest(directory, change)

    with pytest.raises(BundleError, match=fault):
        open_bundle(directory)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "", "a\n"])
def test_file_name_outside_the_directory_is_rejected(directory: Path, name: str) -> None:
    change_manifest(directory, lambda fields: fields.update(tokenizer=name))

    with pytest.raises(BundleError, match="tokenizer is"):
        open_bundle(directory)


@pytest.mark.parametrize("start", [0, 2])
def test_padding_and_eos_are_allowed_as_first_decoder_input(directory: Path, start: int) -> None:
    change_manifest(directory, lambda fields: fields["special_ids"].update(bos=start))

    assert open_bundle(directory).manifest.special_ids.bos == start


_MANY: dict[str, Any] = {
    "sources": {"en": [4], "de": [5], "zh-Hant": [6]},
    "targets": {"en": {"target_prefix": [4]}, "de": {"source_prefix": [7], "target_prefix": [5]}, "fr": {}},
}


def test_multilingual_bundle_has_pairs_and_prefixes(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields.update(schema_version=5, tokenization={"languages": _MANY}))

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
    change_manifest(directory, lambda fields: fields.update(tokenization={"languages": {**_MANY, "pairs": pairs}}))

    manifest = open_bundle(directory).manifest

    assert set(manifest.languages().pairs_served()) == {("en", "de"), ("de", "en"), ("en", "en")}
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"source_language": "fr"}, "fr to de is not one"),
        ({"tokenization": {"languages": _MANY, "source_prefix": [4]}}, "source_prefix and target_prefix"),
        ({"tokenization": {"languages": {**_MANY, "sources": {"en": [9999]}}}}, "a token of a prefix is outside"),
        ({"tokenization": {"languages": {**_MANY, "sources": {"en": [], "EN": []}}}}, "languages.sources.EN.\\[key\\]"),
        (
            {"tokenization": {"languages": {**_MANY, "sources": {"en": [], "zh-hant": [], "zh-Hant": []}}}},
            "two languages",
        ),
        ({"tokenization": {"languages": {**_MANY, "sources": {}}}}, "languages.sources is {}"),
        ({"tokenization": {"languages": {**_MANY, "pairs": [["en", "it"]]}}}, "en to it has an unlisted language"),
    ],
)
def test_inconsistent_languages_are_rejected(directory: Path, fields: dict[str, Any], fault: str) -> None:
    changes = {"tokenization": {"languages": _MANY}, **fields}
    change_manifest(directory, lambda manifest: manifest.update(schema_version=5, **changes))

    with pytest.raises(BundleError, match=fault):
        open_bundle(directory)


def test_bundle_of_version_3_has_one_tokenizer(directory: Path) -> None:
    assert open_bundle(directory).manifest.tokenization == Tokenization()


def test_bundle_of_version_2_has_no_description_of_int8_weights(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields.update(schema_version=2, precisions={"fp32": {**ALL_FILES}}))

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
    change_manifest(directory, lambda fields: fields.update(precisions={"fp32": {**ALL_FILES}}))

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
