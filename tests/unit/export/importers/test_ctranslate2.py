import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ctranslate2.specs import attention_spec, common_spec
from sentencepiece import sentencepiece_model_pb2

from dragoman_export.errors import ImportFormatError
from dragoman_export.evaluation.verification import LOG_PROB_TOLERANCE
from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.portable import TokenizerDescription
from dragoman_export.importers.vocabulary_text import Vocabularies
from tests.ctranslate2_models import save_spec
from tests.foreign_models import change, trained


def _described(model: Path, **options: Any) -> TokenizerDescription:
    return read_ctranslate2(model, **options).tokenizer.description


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("decoder.alibi", True, "decoder/alibi is 1"),
        ("decoder.scale_outputs", np.float32(0.5), "decoder/scale_outputs is 0.5"),
        ("encoder.scale_embeddings", np.float32(3), "encoder/scale_embeddings is 3: expected 1 or"),
        ("encoder.scale_embeddings", False, "scale_embeddings of decoder is True"),
        ("encoder.num_heads", np.int16(2), "num_heads of decoder is 4, elsewhere 2"),
        ("decoder.num_heads", np.int16(0), "decoder/num_heads is 0"),
        (
            "encoder.layer.1.self_attention.rotary_dim",
            np.int32(4),
            "rotary_positions of encoder/layer_1",
        ),
        ("decoder.layer.0.self_attention.queries_scale", np.float32(1), "queries_scale is 1"),
        ("decoder.layer.0.layer_scalar", np.float32(1), "unknown variable decoder/layer_0/layer_scalar"),
        ("decoder.final_logit_softcapping", np.float32(1), "softcapping.*capped logits"),
        ("decoder.sliding_window", np.int32(8), "sliding_window is 8"),
        ("encoder.layer.0.ffn.layer_norm.beta", "__optional", "norm_kind of .* is"),
    ],
)
def test_unsupported_attribute_is_rejected(tmp_path: Path, path: str, value: object, message: str) -> None:
    def change(spec: Any) -> None:
        *places, name = path.split(".")
        for place in places:
            spec = spec[int(place)] if place.isdigit() else getattr(spec, place)
        spec.__dict__[name] = value

    save_spec(tmp_path / "model", change=change)

    with pytest.raises(ImportFormatError, match=message):
        read_ctranslate2(tmp_path / "model")


_LINEAR = attention_spec.RotaryScalingType.Linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"activation": common_spec.Activation.GELUTanh},
            r"encoder/activation is 1 \(GELU by tanh\): expected 0",
        ),
        ({"activation": common_spec.Activation.RELU, "ffn_glu": True}, "ffn is gated by relu: expected swish"),
        ({"rotary": {"rotary_dim": 2}}, "rotary_dim is 2"),
        ({"rotary": {"rotary_dim": 0, "rotary_base": 500}}, "rotary_base is 500"),
        ({"rotary": {"rotary_dim": 0, "rotary_scaling_type": _LINEAR}}, "rotary_scaling_factor"),
    ],
)
def test_unsupported_network_is_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    save_spec(tmp_path / "model", **options)

    with pytest.raises(ImportFormatError, match=message):
        read_ctranslate2(tmp_path / "model")


def _text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


_HEADER = struct.pack("<I", 6) + _text("TransformerSpec") + struct.pack("<I", 7)
_ONE = _HEADER + struct.pack("<I", 1) + _text("x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "4 bytes exceeds.* 0"),
        (struct.pack("<I", 1), "version 1 of the binary format: expected 2 to 6"),
        (struct.pack("<I", 7), "version 7 of the binary format"),
        (struct.pack("<I", 6) + _text("WhisperSpec") + bytes(4), "'WhisperSpec'"),
        (struct.pack("<I", 6) + _text("TransformerDecoderSpec") + bytes(4), "'TransformerDecoderSpec'"),
        (struct.pack("<I", 6) + _text("x") + bytes(4), "'x'"),
        (struct.pack("<IHB", 6, 1, 255) + bytes(9), "UTF-8"),
        (struct.pack("<I", 6) + _text("TransformerSpec") + struct.pack("<I", 8), "revision 8 of TransformerSpec"),
        (_HEADER + struct.pack("<I", 1 << 31), "2147483648 variables"),
        (_ONE + struct.pack("<B", 200), "200 dimensions"),
        (_ONE + struct.pack("<BIIBI", 2, 1 << 31, 1 << 31, 0, 1 << 31), r"bytes for a variable of shape"),
        (_ONE + struct.pack("<BIBI", 1, 1 << 29, 0, 1 << 31), "2147483648 bytes exceeds.* 0"),
        (_ONE + struct.pack("<BBI", 0, 9, 4), "element type 9"),
        (_ONE + struct.pack("<BIBI", 1, 0, 0, 0), r"0 bytes.*\[0\]"),
        (_ONE + struct.pack("<BBIf", 0, 0, 4, 1) + struct.pack("<I", 1) + _text("a") + _text("b"), "alias a of b"),
        (_ONE + struct.pack("<BBIf", 0, 0, 4, 1) + bytes(5), "1 trailing"),
    ],
)
def test_damaged_file_is_rejected(ctranslate2: Path, content: bytes, message: str) -> None:
    (ctranslate2 / "model.bin").write_bytes(content)

    with pytest.raises(ImportFormatError, match=message):
        read_ctranslate2(ctranslate2)


def test_truncated_file_is_rejected(ctranslate2: Path) -> None:
    content = (ctranslate2 / "model.bin").read_bytes()
    for length in range(0, len(content), len(content) // 50):
        (ctranslate2 / "model.bin").write_bytes(content[:length])

        with pytest.raises(ImportFormatError, match=r"is damaged|unsupported"):
            read_ctranslate2(ctranslate2)


def test_directory_without_tokenizer_is_rejected(ctranslate2: Path) -> None:
    (ctranslate2 / "sentencepiece.model").unlink()
    with pytest.raises(ImportFormatError, match=r"has no SentencePiece model .*: give --source-spm and --target-spm"):
        read_ctranslate2(ctranslate2)

    for name in ("a.model", "b.spm"):
        (ctranslate2 / name).write_bytes(b"")
    with pytest.raises(ImportFormatError, match=r"source \(a\.model, b\.spm\)"):
        read_ctranslate2(ctranslate2)


def test_tokenizer_of_another_model_is_rejected(ctranslate2: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.model"
    other.write_bytes(trained(("Ω Ψ Φ Χ Υ Τ Σ Ρ Π Ο Ξ Ν Μ Λ Κ Ι Θ Η Ζ Ε Δ Γ Β Α " * 3,), size=40))

    with pytest.raises(ImportFormatError, match=r"other\.model does not match the vocabulary"):
        read_ctranslate2(ctranslate2, target_spm=other)


def test_unknown_source_eos_requires_a_flag(ctranslate2: Path) -> None:
    path = ctranslate2 / "shared_vocabulary.json"
    tokens = json.loads(path.read_text(encoding="utf-8"))

    assert _described(ctranslate2).source_suffix == ()  # as OpenNMT's, with <blank>
    with pytest.raises(ImportFormatError, match=r"vocabulary has <blank>.*remove --source-eos yes"):
        read_ctranslate2(ctranslate2, source_eos="yes")
    path.write_text(json.dumps(["<pad>", *tokens[2:], tokens[0]]), encoding="utf-8")
    with pytest.raises(ImportFormatError, match="give --source-eos yes"):
        read_ctranslate2(ctranslate2)
    assert _described(ctranslate2, source_eos="no").source_suffix == ()
    assert _described(ctranslate2, source_eos="yes").source_suffix is None
    change(ctranslate2 / "config.json", add_source_eos=True)
    for source_eos in ("yes", "no"):
        with pytest.raises(ImportFormatError, match=r"config.json: add_source_eos is True: remove --source-eos"):
            read_ctranslate2(ctranslate2, source_eos=source_eos)


@pytest.mark.parametrize("spelled", ["__en__ __de__", "eng_Latn deu_Latn", "en_XX de_DE"])
def test_tags_of_a_pair_are_prefixes_of_both_sides(ctranslate2: Path, spelled: str) -> None:
    tokens = spelled.split()
    size = _respell(ctranslate2, *tokens)
    source, target = (tag.strip("_") for tag in tokens)

    with pytest.raises(ImportFormatError, match=f"tags .* {tokens[0]}, {tokens[1]}"):
        read_ctranslate2(ctranslate2, source_tag=source)
    described = _described(ctranslate2, source_tag=source, target_tag=target)

    assert (described.source_prefix, described.target_prefix) == ((size - 2,), (size - 1,))
    assert described.source_suffix is None
    with pytest.raises(ImportFormatError, match=r"model with language tags end with EOS: remove --source-eos no"):
        read_ctranslate2(ctranslate2, source_tag=source, target_tag=target, source_eos="no")


def _respell(ctranslate2: Path, *tokens: str) -> int:
    path = ctranslate2 / "shared_vocabulary.json"
    vocabulary = json.loads(path.read_text(encoding="utf-8"))
    vocabulary[-len(tokens) :] = tokens
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    return len(vocabulary)


@pytest.mark.parametrize("spelled", ["__en__ __de__ __zh__", "eng_Latn deu_Latn zho_Hans", "en_XX de_DE zh_CN"])
def test_tagged_languages_are_imported(ctranslate2: Path, spelled: str) -> None:
    change(ctranslate2 / "config.json", add_source_bos=True)
    size = _respell(ctranslate2, *spelled.split())

    described = _described(ctranslate2)

    languages = described.languages
    assert languages is not None
    bos = languages.sources["en"][0]
    expected = {"en": (size - 3,), "de": (size - 2,), "zh": (size - 1,)}
    assert {tag: (bos, *ids) for tag, ids in expected.items()} == languages.sources
    assert {tag: tokens.target_prefix for tag, tokens in languages.targets.items()} == expected
    assert (described.source_prefix, described.source_suffix) == ((), None)
    few = _described(ctranslate2, source_languages=["en"], target_languages=["de", "zh"])
    assert few.languages is not None
    assert set(few.languages.pairs_served()) == {("en", "de"), ("en", "zh")}
    with pytest.raises(ImportFormatError, match=r"target language 'fr'.*de, en, zh"):
        read_ctranslate2(ctranslate2, target_languages=["fr"])


def test_ambiguous_tags_are_rejected(ctranslate2: Path) -> None:
    size = _respell(ctranslate2, "eng_Latn", "deu_Latn", "en_US", "de_DE")

    with pytest.raises(ImportFormatError, match="deu_Latn and de_DE"):
        read_ctranslate2(ctranslate2)
    named = read_ctranslate2(ctranslate2, source_languages=["eng_Latn"], target_languages=["deu_Latn"])
    languages = named.tokenizer.description.languages
    described = _described(ctranslate2, source_tag="en_US", target_tag="de_DE")

    assert languages is not None
    assert languages.sources == {"en": (size - 4,)}
    assert (described.source_prefix, described.target_prefix) == ((size - 2,), (size - 1,))


def test_only_user_defined_symbols_are_tags(ctranslate2: Path) -> None:
    (path,) = ctranslate2.glob("*.model")
    pieces = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    _respell(ctranslate2, "en_US", "de_DE")
    read = {}
    for kind in (pieces.SentencePiece.NORMAL, pieces.SentencePiece.USER_DEFINED):
        for piece, name in zip(pieces.pieces[-2:], ("en_US", "de_DE"), strict=True):
            piece.piece, piece.type = name, kind
        path.write_bytes(pieces.SerializeToString())
        read[kind] = _described(ctranslate2).languages

    assert [languages and set(languages.sources) for languages in read.values()] == [None, {"en", "de"}]


def test_marian_tag_is_a_source_prefix(ctranslate2: Path) -> None:
    size = _respell(ctranslate2, ">>deu<<", ">>fra<<")

    described = _described(ctranslate2, target_tag="fra")
    languages = _described(ctranslate2, source_languages=["en"]).languages

    assert (described.source_prefix, described.target_prefix) == ((size - 1,), ())
    assert languages is not None
    prefixes = {tag: tokens.source_prefix for tag, tokens in languages.targets.items()}
    assert (languages.sources, prefixes) == ({"en": ()}, {"de": (size - 2,), "fr": (size - 1,)})
    with pytest.raises(ImportFormatError, match="--source-languages"):
        read_ctranslate2(ctranslate2)


def test_stored_sinusoids_are_recognised_except_in_half_precision(tmp_path: Path) -> None:
    angles = np.arange(30)[:, None] / 10000 ** (np.arange(0, 16, 2) / 16)
    table = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(30, 16).astype(np.float32)

    def store(spec: Any) -> None:
        for stack in (spec.encoder, spec.decoder):
            stack.position_encodings.encodings = table

    found = {}
    for quantization in (None, "float16"):
        save_spec(tmp_path / f"{quantization}", change=store, quantization=quantization)
        found[quantization] = read_ctranslate2(tmp_path / f"{quantization}")

    assert (found[None].config.positions, found[None].config.sinusoid_layout) == ("sinusoidal", "interleaved")
    assert found["float16"].config.positions == "learned"
    assert found["float16"].config.max_positions == found[None].limits.max_source_tokens == 30


def test_token_outside_the_vocabulary_has_probability_zero(ctranslate2: Path) -> None:
    (vocabulary,) = ctranslate2.glob("*vocabulary*")
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8").replace("<blank>", "blank"), encoding="utf-8")
    change(ctranslate2 / "config.json", add_source_eos=True)

    added = read_ctranslate2(ctranslate2).weights["projection.bias"].min()  # of `<pad>`

    assert np.exp(np.float32(added)) == 0
    assert np.spacing(np.abs(np.float32(added))) < LOG_PROB_TOLERANCE / 2


def test_special_tokens_have_equal_ids_on_both_sides() -> None:
    fitted = partial(Vocabularies.fitted, eos="</s>", unk="<unk>", start="<s>", origin=Path("x"))

    vocabularies = fitted(["a", "</s>", "b", "<unk>"], ["<unk>", "<s>", "</s>", "c"])

    assert vocabularies.target == ("<unk>", "<s>", "</s>", "c", "<pad>")
    assert [vocabularies.source[i] for i in (vocabularies.eos_id, vocabularies.unk_id)] == ["</s>", "<unk>"]
    assert [vocabularies.source[i] for i in (vocabularies.pad_id, vocabularies.start_id)] == ["<pad>", "<s>"]
    stored = {piece: row for piece, row in zip(vocabularies.source, vocabularies.source_rows, strict=True) if piece}
    assert stored == {"a": 0, "</s>": 1, "b": 2, "<unk>": 3, "<s>": None, "<pad>": None}
    with pytest.raises(ImportFormatError, match="'c'"):
        fitted(["c", "c"], ["<unk>", "<s>", "</s>"])
