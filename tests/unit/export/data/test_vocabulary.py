from pathlib import Path
from typing import Literal

import pytest

from dragoman_export.data.vocabulary import (
    BOS_ID,
    EOS_ID,
    LATIN_CHARACTERS,
    PAD_ID,
    UNK_ID,
    Vocabulary,
    VocabularyConfig,
    default_characters,
    train_vocabulary,
)
from dragoman_export.errors import CorpusError
from tests.unit.export.tiny_training import make_pairs, tiny_vocabulary


def test_encoding_ends_with_eos_and_separates_digits() -> None:
    vocabulary = tiny_vocabulary()

    token_ids, one, digits = vocabulary.encode(["red house Ωß 😀 42", "5", "5555"])

    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    assert token_ids[-1] == EOS_ID
    assert UNK_ID not in token_ids
    assert vocabulary.decode([token_ids, [PAD_ID, BOS_ID, EOS_ID]]) == ["red house Ωß 😀 42", ""]
    assert len(digits) == len(one) + 3


@pytest.mark.parametrize(("model_type", "alpha"), [("unigram", 0.01), ("bpe", 0.3)])
def test_sampled_pieces_are_reversible_and_deterministic(model_type: Literal["unigram", "bpe"], alpha: float) -> None:
    vocabulary, texts = tiny_vocabulary(model_type=model_type), [source for source, _ in make_pairs(30)]

    first, again, other = (vocabulary.encode_sampled(texts, alpha=alpha, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert first != vocabulary.encode(texts)
    assert vocabulary.decode(first) == texts
    assert {ids[-1] for ids in first} == {EOS_ID}


def test_no_text_contains_a_language_token() -> None:
    sentences = [side for pair in make_pairs(200) for side in pair]
    vocabulary = train_vocabulary(iter(sentences), VocabularyConfig(size=320, target_languages=("de", "zh-Hant")))

    (token,), (other,) = (vocabulary.language_prefix("en", target) for target in ("de", "zh-Hant"))

    ids = vocabulary.encode(["<2de> red <2zh-Hant>"])[0]
    assert not {token, other} & set(ids)
    assert vocabulary.decode([[token, *ids]]) == ["<2de> red <2zh-Hant>"]
    assert [vocabulary.piece(each) for each in (token, other)] == ["<2de>", "<2zh-Hant>"]
    assert vocabulary.spelled_by(tiny_vocabulary())[token] == []
    with pytest.raises(CorpusError, match="no control piece <2fr>"):
        vocabulary.language_prefix("en", "fr")


def test_reserved_pieces_are_never_split() -> None:
    sentences = (side for pair in make_pairs(200) for side in pair)
    vocabulary = train_vocabulary(sentences, VocabularyConfig(size=320, reserved=("⟦1⟧", "⟦12⟧")))
    *_, piece, _ = vocabulary.encode(["⟦12⟧"])[0]

    drawn = [vocabulary.encode(["a ⟦12⟧-cat"])[0], *vocabulary.encode_sampled(["a ⟦12⟧-cat"] * 99, alpha=0.01, seed=1)]

    assert vocabulary.reserved == ("⟦1⟧", "⟦12⟧")
    assert {ids.count(piece) for ids in drawn} == {1}
    assert set(vocabulary.decode(drawn)) == {"a ⟦12⟧-cat"}
    assert piece not in vocabulary.encode(["⟦12 ⟧, ⟦2⟧ 12"])[0]
    assert tiny_vocabulary().reserved == ()


def test_required_characters_have_pieces_unless_the_normalization_changes_them() -> None:
    sentences = (side for pair in make_pairs(200) for side in pair)
    vocabulary = train_vocabulary(sentences, VocabularyConfig(size=320, required_characters="Šş€→½²"))

    found = {
        char for char in "Šş€→½²ž" if any(vocabulary.piece(token) == char for token in vocabulary.encode([char])[0])
    }

    assert found == set("Šş€→")


@pytest.mark.parametrize(
    ("sentence", "size", "expected"),
    [
        ("A house", 4000, LATIN_CHARACTERS),
        ("A house", 3999, ""),
        ("дом house", 8000, LATIN_CHARACTERS),
        ("домик дом a", 8000, ""),
        ("家", 8000, ""),
        ("12", 8000, LATIN_CHARACTERS),
    ],
)
def test_latin_characters_are_required_by_default_for_latin_text(sentence: str, size: int, expected: str) -> None:
    assert default_characters([sentence], size) == expected


def test_latin_characters_are_distinct_and_printable() -> None:
    assert len(set(LATIN_CHARACTERS)) == len(LATIN_CHARACTERS)
    assert LATIN_CHARACTERS.isprintable()
    assert set(map(chr, range(0x21, 0x7F))) <= set(LATIN_CHARACTERS)
    assert set("äßéÅŠłő€„“–…→≤½") <= set(LATIN_CHARACTERS)


def test_pieces_are_spelled_by_another_vocabulary() -> None:
    old = tiny_vocabulary()
    sentences = ["red redder reddest house houses riverside treehouse birdhouse ⟦1⟧"] * 200
    new = train_vocabulary(iter(sentences), VocabularyConfig(size=280, reserved=("⟦1⟧",)))

    spelled = new.spelled_by(old)

    spellings = {new.piece(index): "".join(map(old.piece, ids)) for index, ids in enumerate(spelled)}
    assert spellings == {piece: "" if piece == "⟦1⟧" else piece for piece in spellings}
    assert len(spelled) == len(spellings) == len(new)
    assert [spelled[index] for index in (PAD_ID, BOS_ID, EOS_ID, UNK_ID)] == [[PAD_ID], [BOS_ID], [EOS_ID], [UNK_ID]]
    assert any(len(ids) > 1 for ids in spelled)
    assert old.spelled_by(old) == [[index] for index in range(len(old))]


def test_saved_vocabulary_equals_the_trained_one(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.model").write_bytes(tiny_vocabulary().model)

    assert Vocabulary.load(tmp_path / "vocabulary.model").encode(["a river"]) == tiny_vocabulary().encode(["a river"])


def test_too_little_text_is_rejected() -> None:
    with pytest.raises(CorpusError, match="cannot learn a vocabulary of 9999 pieces"):
        train_vocabulary((source for source, _ in make_pairs(5)), VocabularyConfig(size=9999))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a SentencePiece"), (b"text", "not a SentencePiece"), (None, r"cannot read vocabulary .*v\.model")],
)
def test_invalid_vocabulary_is_rejected(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "v.model").write_bytes(content)

    with pytest.raises(CorpusError, match=message):
        Vocabulary.load(tmp_path / "v.model")
