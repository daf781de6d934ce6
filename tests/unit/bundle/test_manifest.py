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
def test_a_graph_in_the_format_of_onnx_runtime_is_refused(directory: Path, graph: str) -> None:
    change_manifest(directory, lambda fields: fields["precisions"]["fp32"].update({graph: "graph.ORT"}))

    with pytest.raises(BundleError, match=rf"precisions\.fp32\.{graph} is 'graph.ORT', expected a graph in ONNX"):
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


def test_an_unknown_field_is_named_with_its_value(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields["limits"].update(max_beam=9))

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
        (lambda fields: fields["tensors"]["fp32"]["encoder"].update(HALVES), "tensors are not those"),
        (
            lambda fields: fields["tensors"].update(fp16=fields["tensors"].pop("fp32")),
            r"tensors are those of \['fp16'\], precisions \['fp32'\]",
        ),
        (describe_no_attention, "tensors are not those"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="lost.bin"), r"no checksum of \['lost.bin'\]"),
        (lambda fields: fields["precisions"]["fp32"].update(weights="../lost.bin"), r"weights is '\.\./lost\.bin'"),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    directory: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    change_manifest(directory, change)

    with pytest.raises(BundleError, match=told):
        open_bundle(directory)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "", "a\n"])
def test_a_file_name_that_leaves_the_directory_is_refused(directory: Path, name: str) -> None:
    change_manifest(directory, lambda fields: fields.update(tokenizer=name))

    with pytest.raises(BundleError, match="tokenizer is"):
        open_bundle(directory)


@pytest.mark.parametrize("start", [0, 2])
def test_decoding_may_start_from_padding_or_eos(directory: Path, start: int) -> None:
    change_manifest(directory, lambda fields: fields["special_ids"].update(bos=start))

    assert open_bundle(directory).manifest.special_ids.bos == start


_MANY: dict[str, Any] = {
    "sources": {"en": [4], "de": [5], "zh-Hant": [6]},
    "targets": {"en": {"target_prefix": [4]}, "de": {"source_prefix": [7], "target_prefix": [5]}, "fr": {}},
}


def test_a_bundle_of_many_languages_tells_its_pairs_and_their_prefixes(directory: Path) -> None:
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


def test_pairs_may_be_told_one_by_one(directory: Path) -> None:
    pairs = [["en", "de"], ["de", "en"], ["en", "en"]]
    change_manifest(directory, lambda fields: fields.update(tokenization={"languages": {**_MANY, "pairs": pairs}}))

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
    change_manifest(directory, lambda manifest: manifest.update(schema_version=5, **changes))

    with pytest.raises(BundleError, match=told):
        open_bundle(directory)


def test_a_bundle_of_the_third_version_opens_and_has_one_tokenizer(directory: Path) -> None:
    assert open_bundle(directory).manifest.tokenization == Tokenization()


def test_a_bundle_of_the_second_version_opens_and_describes_no_int8_weights(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields.update(schema_version=2, precisions={"fp32": {**ALL_FILES}}))

    assert open_bundle(directory).int8_weights("fp32") is None


def test_a_bundle_of_the_first_version_opens_and_lacks_attention(directory: Path) -> None:
    def age(fields: dict[str, Any]) -> None:
        described = {**fields["tensors"]["fp32"]}
        described.pop("attention")
        fields.update(schema_version=1, tensors=described)

    change_manifest(directory, age)

    bundle = open_bundle(directory)

    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph")
    assert bundle.manifest.tensors["fp32"].float_type == "float32"
    with pytest.raises(BundleError, match=r"precisions\.fp32\.attention is None, expected a graph; export the model"):
        bundle.attention_path("fp32")


def test_a_bundle_with_attention_and_shared_weights_opens(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields.update(precisions={"fp32": {**ALL_FILES}}))

    bundle = open_bundle(directory)

    assert bundle.attention_path("fp32") == directory / "attention.onnx"
    assert bundle.weights_bytes("fp32") == len(b"encoder graph" + b"decoder graph" + b"weights")


def test_each_precision_says_the_type_of_its_own_cache(directory: Path) -> None:
    def add_halves(fields: dict[str, Any]) -> None:
        fields["precisions"].update(fp16={**ALL_FILES})
        fields["tensors"].update(fp16=graph_tensors(1, "float16").model_dump())

    change_manifest(directory, add_halves)

    tensors = load_manifest(directory).tensors

    assert {name: tensors[name].float_type for name in tensors} == {"fp32": "float32", "fp16": "float16"}
