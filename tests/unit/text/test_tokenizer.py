import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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


def test_decoding_restores_the_text(tokenizer: SentencePieceTokenizer) -> None:
    token_ids = tokenizer.encode("The lazy fox.")

    assert not {tokenizer.bos_id, tokenizer.eos_id} & set(token_ids)
    assert tokenizer.decode(token_ids) == "The lazy fox."


@pytest.mark.parametrize("text", ["你好", "naïve Füße", "👨‍👩‍👧 🎉", "a\x00b", "</s><pad>"])
def test_characters_without_a_piece_are_encoded_in_bytes(tokenizer: SentencePieceTokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)

    assert tokenizer.unk_id not in token_ids
    assert tokenizer.decode(token_ids) == text


def test_names_of_special_tokens_are_encoded_as_text(tokenizer: SentencePieceTokenizer) -> None:
    assert min(tokenizer.encode("<pad><s></s><unk>")) > 3


@pytest.mark.parametrize("text", ["", " \t\n", "\u200b\ufeff"])
def test_invisible_text_has_no_tokens(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.encode(text) == []
    assert tokenizer.decode([]) == ""


def test_special_tokens_are_not_decoded_but_have_pieces(tokenizer: SentencePieceTokenizer) -> None:
    token_ids = [tokenizer.bos_id, *tokenizer.encode("fox"), tokenizer.eos_id, tokenizer.pad_id]

    assert tokenizer.decode(token_ids) == "fox"
    assert tokenizer.pieces(token_ids)[0] == "<s>"
    assert tokenizer.pieces(token_ids)[-2:] == ["</s>", "<pad>"]


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


def test_decoding_returns_the_offset_of_each_token(tokenizer: SentencePieceTokenizer) -> None:
    token_ids = tokenizer.encode("The 🎉 fox.")

    text, offsets = tokenizer.decode_with_offsets(token_ids)

    assert text == tokenizer.decode(token_ids) == "The 🎉 fox."
    assert len(offsets) == len(token_ids)
    assert "".join(text[start:end] for start, end in offsets) == text


def test_every_piece_except_special_ones_has_a_token(tokenizer: SentencePieceTokenizer) -> None:
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))

    token_ids = [tokenizer.token_id(piece) for piece in pieces]

    assert token_ids == [None] * 4 + list(range(4, tokenizer.vocabulary_size))


@pytest.mark.parametrize("piece", ["", "no such piece", "\ud800", "a\x00"])
def test_unknown_piece_has_no_token(tokenizer: SentencePieceTokenizer, piece: str) -> None:
    assert tokenizer.token_id(piece) is None


@pytest.mark.parametrize("token_id", [-1, 320])
def test_id_outside_the_vocabulary_is_rejected(tokenizer: SentencePieceTokenizer, token_id: int) -> None:
    with pytest.raises(ValueError, match=f"{token_id} is outside the vocabulary of 320"):
        tokenizer.decode([token_id])
    with pytest.raises(ValueError, match=f"{token_id} is outside the vocabulary of 320"):
        tokenizer.decode_with_offsets([token_id])
    with pytest.raises(ValueError, match=f"{token_id} is outside the vocabulary of 320"):
        tokenizer.pieces([token_id])


def test_lone_surrogate_is_rejected_with_its_position(tokenizer: SentencePieceTokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate, .* at 2"):
        tokenizer.encode("ab\udcff")
    with pytest.raises(ValueError, match=r"lone surrogate, .* at 2"):
        tokenizer.offsets("ab\udcff")


def test_threads_share_a_tokenizer(tokenizer: SentencePieceTokenizer) -> None:
    texts = [f"The fox {number} jumps." for number in range(200)]

    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda text: tokenizer.decode(tokenizer.encode(text)), texts))

    assert decoded == texts


@pytest.mark.parametrize("content", [b"", b"no model", None], ids=["empty", "other", "missing"])
def test_invalid_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.model"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BundleError) as caught:
        SentencePieceTokenizer(path)

    assert caught.value.file == str(path)


def test_truncated_file_is_rejected(tokenizer_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer_file.read_bytes()[:-1000])

    with pytest.raises(BundleError, match="content is unparsable"):
        SentencePieceTokenizer(path)


def test_model_without_a_special_token_is_rejected(tmp_path: Path) -> None:
    (path := tmp_path / "tokenizer.model").write_bytes(
        train_sentencepiece(["How are you?"], vocab_size=320, byte_fallback=True, pad_id=-1)
    )

    with pytest.raises(BundleError, match="special token 'pad' is missing"):
        SentencePieceTokenizer(path)


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


def test_tokenizer_that_fits_the_manifest_is_opened(tokenizer_file: Path) -> None:
    assert open_tokenizer(_bundle(tokenizer_file)).vocabulary_size == 320


def test_tokenizer_that_does_not_fit_the_manifest_is_rejected(tokenizer_file: Path) -> None:
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


def test_offsets_are_those_of_the_source_model(two_models: _TwoModels) -> None:
    tokenizer, text = two_models.open(), "How are 漢字?"

    offsets = tokenizer.offsets(text)

    assert len(offsets) == len(tokenizer.encode(text))
    assert "".join(text[start:end] for start, end in offsets) == text


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
            tmp_path / "target.spm",
            Tokenization(pieces="pieces.json"),
            SpecialIds(pad=2, bos=2, eos=0, unk=1),
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
    with pytest.raises(BundleError, match="placeholder ⟦1⟧"):
        SentencePieceTokenizer(tokenizer_file, Tokenization(placeholders=("⟦1⟧",)))
