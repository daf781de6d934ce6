import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

from dragoman_service.bundle.architecture import Architecture
from dragoman_service.bundle.files import Bundle
from dragoman_service.bundle.manifest import Languages, Manifest, SpecialIds, TargetTokens, Tokenization
from dragoman_service.errors import BundleError
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from tests.unit.text.text_fakes import train_sentencepiece


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(tokenizer_file)


def test_special_ids_and_size_come_from_the_model(tokenizer: SentencePieceTokenizer) -> None:
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.vocabulary_size == 320


@pytest.mark.parametrize(
    "text",
    ["The lazy fox.", "你好", "naïve Füße", "👨‍👩‍👧 🎉", "a\x00b", "<pad><s></s><unk>", "", " \t\n", "\u200b\ufeff"],
)
def test_text_is_encoded_without_special_tokens_and_restored(tokenizer: SentencePieceTokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)

    assert min(token_ids, default=4) > tokenizer.unk_id  # the largest of the special ids
    assert bool(token_ids) == bool(text.strip(" \t\n\u200b\ufeff"))
    assert tokenizer.decode(token_ids) == (text if token_ids else "")


def test_special_tokens_are_not_decoded_but_have_pieces(tokenizer: SentencePieceTokenizer) -> None:
    token_ids = [tokenizer.bos_id, *tokenizer.encode("fox"), tokenizer.eos_id, tokenizer.pad_id]

    assert tokenizer.decode(token_ids) == "fox"
    assert tokenizer.pieces(token_ids)[0] == "<s>"
    assert tokenizer.pieces(token_ids)[-2:] == ["</s>", "<pad>"]


def test_special_tokens_have_empty_ranges_in_the_decoded_text(tokenizer: SentencePieceTokenizer) -> None:
    words = tokenizer.encode("fox"), tokenizer.encode("dog")
    token_ids = [tokenizer.bos_id, *words[0], tokenizer.eos_id, *words[1], tokenizer.pad_id]

    text, ranges = tokenizer.decode_with_offsets(token_ids)

    middle = 1 + len(words[0])
    assert ranges[0] == (0, 0)
    assert ranges[middle] == (ranges[middle - 1][1],) * 2
    assert ranges[-1] == (len(text), len(text))
    assert "".join(text[begin:end] for begin, end in ranges) == text


def test_invalid_utf8_becomes_replacement_characters(tokenizer: SentencePieceTokenizer) -> None:
    lone_byte = next(i for i in range(tokenizer.vocabulary_size) if tokenizer.pieces([i]) == ["<0xE4>"])

    assert tokenizer.decode([lone_byte]) == "\ufffd"


def test_offsets_are_code_points_of_the_original_text(tokenizer: SentencePieceTokenizer) -> None:
    text = "The  ﬁx 🎉 ü"

    offsets = tokenizer.offsets(text)

    assert len(offsets) == len(tokenizer.encode(text))
    assert "".join(text[start:end] for start, end in offsets) == text
    assert {text[start:end].strip() for start, end in offsets} >= {"🎉", "ü"}


def test_last_byte_of_a_character_has_its_offset(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.offsets("🎉")[-4:] == [(0, 0), (0, 0), (0, 0), (0, 1)]


def test_every_piece_except_special_ones_has_a_token(tokenizer: SentencePieceTokenizer) -> None:
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))

    assert list(map(tokenizer.token_id, pieces)) == [None] * 4 + list(range(4, tokenizer.vocabulary_size))
    assert {tokenizer.token_id(piece) for piece in ("", "no such piece", "\ud800", "a\x00")} == {None}


@pytest.mark.parametrize("token_id", [-1, 320])
@pytest.mark.parametrize("method", ["decode", "decode_with_offsets", "pieces", "source_pieces"])
def test_id_outside_the_vocabulary_is_rejected(tokenizer: SentencePieceTokenizer, method: str, token_id: int) -> None:
    with pytest.raises(ValueError, match=f"{token_id} is outside the vocabulary of 320"):
        getattr(tokenizer, method)([token_id])


@pytest.mark.parametrize("method", ["encode", "encode_target", "offsets"])
def test_lone_surrogate_is_rejected_with_its_position(tokenizer: SentencePieceTokenizer, method: str) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate, .* at 2"):
        getattr(tokenizer, method)("ab\udcff")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda _: b"", "content is empty"),
        (lambda _: b"no model", "content is unparsable"),
        (lambda model: model[:-1000], "content is unparsable"),
        (
            lambda _: train_sentencepiece(["How are you?"], vocab_size=320, byte_fallback=True, pad_id=-1),
            "'pad' is missing",
        ),
        (None, "No such file"),
    ],
    ids=["empty", "other", "truncated", "no padding", "missing"],
)
def test_invalid_file_is_named(
    tokenizer_file: Path, tmp_path: Path, content: Callable[[bytes], bytes] | None, message: str
) -> None:
    path = tmp_path / "tokenizer.model"
    if content is not None:
        path.write_bytes(content(tokenizer_file.read_bytes()))

    with pytest.raises(BundleError, match=message) as caught:
        SentencePieceTokenizer(path)

    assert caught.value.file == str(path)


def _bundle(tokenizer_file: Path, *, vocabulary_size: int = 320, bos: int = 1) -> Bundle:
    manifest = Manifest.model_construct(
        source_language="en",
        target_language="de",
        tokenizer=tokenizer_file.name,
        tokenization=Tokenization(),
        architecture=Architecture.model_construct(vocabulary_size=vocabulary_size),
        special_ids=SpecialIds(pad=0, bos=bos, eos=2, unk=3),
    )
    return Bundle(directory=tokenizer_file.parent, manifest=manifest)


def test_tokenizer_must_fit_the_manifest(tokenizer_file: Path) -> None:
    assert open_tokenizer(_bundle(tokenizer_file)).vocabulary_size == 320
    with pytest.raises(BundleError, match="vocabulary size is 320, expected 321"):
        open_tokenizer(_bundle(tokenizer_file, vocabulary_size=321))
    with pytest.raises(BundleError, match="id of BOS is 1, expected 7"):
        open_tokenizer(_bundle(tokenizer_file, bos=7))


_PAD, _EOS, _UNK = 60, 0, 1  # differ from the special ids of SentencePiece models


class _TwoModels:
    """SentencePiece models of both sides, without bytes and padding, and one vocabulary of the pieces of both."""

    def __init__(self, directory: Path) -> None:
        self.source = _trained(("The quick brown fox jumps over the lazy dog.", "How are you?"))
        self.target = _trained(("Der schnelle braune Fuchs springt über den faulen Hund.", "Wie geht es?"))
        words = sorted({*_words(self.source), *_words(self.target)} - {"x"})
        self.pieces: list[str | None] = ["</s>", "<unk>", *words[:50]]
        self.pieces += [None] * (_PAD - len(self.pieces)) + ["<pad>", *words[50:], "▁quick", ">>de<<", None]
        self.file = directory / "target.spm"
        self.file.write_bytes(self.target.serialized_model_proto())
        (directory / "source.spm").write_bytes(self.source.serialized_model_proto())
        (directory / "pieces.json").write_text(json.dumps(self.pieces), encoding="utf-8")

    def open(self, **fields: Any) -> SentencePieceTokenizer:
        tokenization = Tokenization(source_model="source.spm", pieces="pieces.json", **fields)
        return SentencePieceTokenizer(self.file, tokenization, SpecialIds(pad=_PAD, bos=_PAD, eos=_EOS, unk=_UNK))


def _trained(sentences: Sequence[str]) -> SentencePieceProcessor:
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(train_sentencepiece(sentences, model_type="unigram", vocab_size=50))
    return processor


def _words(processor: SentencePieceProcessor) -> list[str]:
    return [processor.IdToPiece(i) for i in range(3, processor.GetPieceSize())]


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> _TwoModels:
    return _TwoModels(tmp_path_factory.mktemp("two"))


def test_sides_have_their_own_models_and_common_ids(two_models: _TwoModels) -> None:
    tokenizer = two_models.open()

    source, target = tokenizer.encode("quick fo"), tokenizer.encode_target("Fuchs")

    assert [two_models.pieces[i] for i in target] == two_models.target.EncodeAsPieces("Fuchs")
    assert tokenizer.source_pieces(source) == two_models.source.EncodeAsPieces("quick fo")
    assert tokenizer.decode([*target, _EOS]) == "Fuchs"
    assert tokenizer.vocabulary_size == tokenizer.source_vocabulary_size == len(two_models.pieces)


def test_piece_without_id_becomes_the_unknown_token(two_models: _TwoModels) -> None:
    assert two_models.source.EncodeAsPieces("ax")[-1] == "x"
    assert "x" not in two_models.pieces

    assert two_models.open().encode("ax")[-1] == _UNK


def test_source_may_use_pieces_of_the_target_model(two_models: _TwoModels) -> None:
    assert two_models.source.PieceToId("ü") == two_models.source.unk_id()

    assert two_models.pieces.index("ü") in two_models.open().encode("ü")


def test_target_may_use_pieces_of_the_source_model(two_models: _TwoModels) -> None:
    tokenizer = two_models.open()
    only = "▁quick"
    assert two_models.target.PieceToId(only) == two_models.target.unk_id()
    token_ids = [*tokenizer.encode_target("Hund"), two_models.pieces.index(only)]

    text, offsets = tokenizer.decode_with_offsets(token_ids)

    assert text == tokenizer.decode(token_ids) == f"Hund {only[1:]}"
    assert "".join(text[start:end] for start, end in offsets) == text


def test_text_is_never_encoded_as_special_token_or_language_tag(two_models: _TwoModels) -> None:
    tag = two_models.pieces.index(">>de<<")
    tokenizer = two_models.open(source_prefix=(tag,))

    token_ids = tokenizer.encode("</s> <pad> >>de<<") + tokenizer.encode_target("</s> <pad> >>de<<")

    assert not {_PAD, _EOS, tag} & set(token_ids)
    assert tokenizer.token_id(">>de<<") is tokenizer.token_id("</s>") is tokenizer.token_id("") is None


@pytest.mark.parametrize(("suffix", "end"), [(None, [_EOS]), ((), []), ((_EOS, _PAD), [_EOS, _PAD])])
def test_sources_end_with_the_suffix_of_the_model(
    two_models: _TwoModels, suffix: tuple[int, ...] | None, end: list[int]
) -> None:
    tokenizer = two_models.open(source_suffix=suffix)

    source, target = tokenizer.encode_pair("quick fox", "Hund")

    assert source == tokenizer.encode("quick fox") + end
    assert target == [*tokenizer.encode_target("Hund"), _EOS]


def test_language_pairs_have_their_own_prefixes(two_models: _TwoModels) -> None:
    tag, begin = two_models.pieces.index(">>de<<"), two_models.open().encode("How")[-1]
    languages = Languages(
        sources={"en": (begin,), "fr": ()}, targets={"de": TargetTokens(target_prefix=(tag,)), "it": TargetTokens()}
    )
    tokenizer = two_models.open(languages=languages)

    pair = tokenizer.for_pair("en", "de")

    assert pair.encode_pair("How", "") == ([begin, *tokenizer.encode("How"), tokenizer.eos_id], [tag, tokenizer.eos_id])
    assert tokenizer.for_pair("fr", "it").encode_pair("How", "")[1] == [tokenizer.eos_id]
    assert begin not in tokenizer.encode("How")
    assert tokenizer.for_pair("fr", "it").decode([tag, *tokenizer.encode_target("Hund")]) == "Hund"


def test_target_prefix_is_not_decoded(two_models: _TwoModels) -> None:
    tokenizer = two_models.open(target_prefix=(two_models.pieces.index(">>de<<"),))

    assert tokenizer.decode([*tokenizer.target_prefix, *tokenizer.encode_target("Hund")]) == "Hund"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (b"{}", "content is something else, expected a JSON array of strings and nulls"),
        (b"[1]", "content is something else"),
        (b'["a", "b", "a"]', "repeated piece is 'a', expected each piece once"),
        (None, "No such file"),
    ],
)
def test_invalid_file_of_pieces_is_rejected(
    two_models: _TwoModels, tmp_path: Path, pieces: bytes | None, message: str
) -> None:
    (tmp_path / "target.spm").write_bytes(two_models.file.read_bytes())
    if pieces is not None:
        (tmp_path / "pieces.json").write_bytes(pieces)

    with pytest.raises(BundleError, match=message):
        SentencePieceTokenizer(
            tmp_path / "target.spm", Tokenization(pieces="pieces.json"), SpecialIds(pad=2, bos=2, eos=0, unk=1)
        )


def test_placeholders_must_be_one_token_each(tmp_path: Path, tokenizer_file: Path) -> None:
    special = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "user_defined_symbols": ["⟦1⟧"]}
    model = train_sentencepiece(["how are you"], model_type="unigram", vocab_size=270, byte_fallback=True, **special)
    (path := tmp_path / "tokenizer.model").write_bytes(model)

    taught = SentencePieceTokenizer(path, Tokenization(placeholders=("⟦1⟧",)))

    assert taught.placeholders == ("⟦1⟧",)
    assert taught.pieces(taught.encode("you⟦1⟧, ⟦1⟧")).count("⟦1⟧") == 2
    assert [taught.source_pieces([source]) + taught.pieces([target]) for source, target in taught.placeholder_ids] == [
        ["⟦1⟧", "⟦1⟧"]
    ]
    with pytest.raises(BundleError, match="piece ⟦1⟧"):
        SentencePieceTokenizer(tokenizer_file, Tokenization(placeholders=("⟦1⟧",)))


@pytest.mark.parametrize("character", "aTz .?\n\t\u2003ﬁ")
def test_character_with_pieces_is_spelled(tokenizer: SentencePieceTokenizer, character: str) -> None:
    assert tokenizer.spells(character)
    assert tokenizer.spells(character)  # the second answer comes from a table


@pytest.mark.parametrize("character", "éñ漢я😀→²™½①\x00\x7f\u200b\ud800\u0301")
def test_character_in_bytes_or_changed_by_normalization_is_not_spelled(
    tokenizer: SentencePieceTokenizer, character: str
) -> None:
    assert not tokenizer.spells(character)
    assert not tokenizer.spells(character)


def test_unknown_character_is_not_spelled_without_byte_fallback(tmp_path: Path) -> None:
    special = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    (path := tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(["how are you"], vocab_size=40, **special))

    plain = SentencePieceTokenizer(path)

    assert [plain.spells(character) for character in "how é漢"] == [True, True, True, True, False, False]
    assert plain.byte_ids == frozenset()


def test_byte_tokens_and_the_character_that_sources_drop(tokenizer: SentencePieceTokenizer) -> None:
    assert len(tokenizer.byte_ids) == 256
    assert {tokenizer.pieces([token_id])[0][:3] for token_id in tokenizer.byte_ids} == {"<0x"}
    assert tokenizer.filler
    assert tokenizer.encode(f"fo{tokenizer.filler}x") == tokenizer.encode("fox")


def test_reserved_pieces_have_their_ids(tmp_path: Path) -> None:
    special = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "user_defined_symbols": ["⟦1⟧", "⟪1⟫", "⟪/1⟫"]}
    model = train_sentencepiece(["how are you"], model_type="unigram", vocab_size=272, byte_fallback=True, **special)
    (path := tmp_path / "tokenizer.model").write_bytes(model)

    taught = SentencePieceTokenizer(path, Tokenization(placeholders=("⟦1⟧",), reserved=("⟪1⟫", "⟪/1⟫")))

    assert taught.reserved == ("⟪1⟫", "⟪/1⟫")
    assert [taught.pieces([target]) for _, target in taught.reserved_ids] == [["⟪1⟫"], ["⟪/1⟫"]]
    with pytest.raises(BundleError, match="piece ⟪9⟫"):
        SentencePieceTokenizer(path, Tokenization(reserved=("⟪9⟫",)))
