from pathlib import Path
from typing import Literal

import pytest

from dragoman_export.data.vocabulary import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Vocabulary,
    VocabularyConfig,
    train_vocabulary,
)
from dragoman_export.errors import CorpusError
from tests.unit.export.tiny_training import make_pairs, tiny_vocabulary


def test_special_ids_are_0_to_3() -> None:
    vocabulary = tiny_vocabulary()

    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    assert vocabulary.decode([[PAD_ID, BOS_ID, EOS_ID]]) == [""]


def test_encoding_ends_with_eos_and_is_reversible() -> None:
    vocabulary = tiny_vocabulary()

    (token_ids,) = vocabulary.encode(["red house Ωß 😀 42"])

    assert token_ids[-1] == EOS_ID
    assert UNK_ID not in token_ids
    assert vocabulary.decode([token_ids]) == ["red house Ωß 😀 42"]


@pytest.mark.parametrize(("model_type", "alpha"), [("unigram", 0.01), ("bpe", 0.3)])
def test_sampled_pieces_are_reversible_and_deterministic(model_type: Literal["unigram", "bpe"], alpha: float) -> None:
    vocabulary, texts = tiny_vocabulary(model_type=model_type), [source for source, _ in make_pairs(30)]

    first, again, other = (vocabulary.encode_sampled(texts, alpha=alpha, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert first != vocabulary.encode(texts)
    assert vocabulary.decode(first) == texts
    assert {ids[-1] for ids in first} == {EOS_ID}


def test_reserved_pieces_are_never_split() -> None:
    sentences = (side for pair in make_pairs(200) for side in pair)
    vocabulary = train_vocabulary(sentences, VocabularyConfig(size=320, reserved=("⟦1⟧", "⟦12⟧")))

    drawn = [vocabulary.encode(["a ⟦12⟧-cat"])[0], *vocabulary.encode_sampled(["a ⟦12⟧-cat"] * 99, alpha=0.01, seed=1)]

    assert vocabulary.reserved == ("⟦1⟧", "⟦12⟧")
    assert {ids.count(vocabulary.encode(["⟦12⟧"])[0][-2]) for ids in drawn} == {1}
    assert set(vocabulary.decode(drawn)) == {"a ⟦12⟧-cat"}
    assert vocabulary.encode(["⟦12⟧"])[0][-2] not in vocabulary.encode(["⟦12 ⟧, ⟦2⟧ 12"])[0]
    assert tiny_vocabulary().reserved == ()


def test_pieces_are_spelled_by_another_vocabulary() -> None:
    old = tiny_vocabulary()
    sentences = ["red redder reddest house houses riverside treehouse birdhouse ⟦1⟧"] * 200
    new = train_vocabulary(iter(sentences), VocabularyConfig(size=280, reserved=("⟦1⟧",)))

    spelled = new.spelled_by(old)

    assert len(spelled) == len(new)
    for index, ids in enumerate(spelled):
        piece = new.piece(index)
        if piece == "⟦1⟧":
            assert ids == []
        else:
            assert "".join(old.piece(token_id) for token_id in ids) == piece
    assert [spelled[index] for index in (PAD_ID, BOS_ID, EOS_ID, UNK_ID)] == [[PAD_ID], [BOS_ID], [EOS_ID], [UNK_ID]]
    assert any(len(ids) > 1 for ids in spelled)
    assert old.spelled_by(old) == [[index] for index in range(len(old))]


def test_digits_are_separate_pieces() -> None:
    vocabulary = tiny_vocabulary()

    one, all_digits = vocabulary.encode(["5", "5555"])

    assert len(all_digits) == len(one) + 3


def _round_trip(text: str, normalization: str) -> str:
    vocabulary = tiny_vocabulary(normalization)
    return vocabulary.decode(vocabulary.encode([text]))[0]


def test_saved_vocabulary_equals_the_trained_one(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.model"
    path.write_bytes(tiny_vocabulary().model)

    loaded = Vocabulary.load(path)

    assert loaded.encode(["blue river"]) == tiny_vocabulary().encode(["blue river"])


def test_too_little_text_is_rejected() -> None:
    sentences = (source for source, _ in make_pairs(5))

    with pytest.raises(CorpusError, match="cannot learn a vocabulary of 9999 pieces"):
        train_vocabulary(sentences, VocabularyConfig(size=9999))


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_invalid_vocabulary_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocabulary.model"
    path.write_bytes(content)

    with pytest.raises(CorpusError, match="not a SentencePiece model"):
        Vocabulary.load(path)


def test_missing_vocabulary_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cannot read vocabulary .*absent\.model"):
        Vocabulary.load(tmp_path / "absent.model")
