import itertools
import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman_service.bundle.manifest import SpecialIds, Tokenization
from dragoman_service.errors import BundleError
from dragoman_service.text.byte_level_bpe import ByteLevelBpe
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "¼"), ("Ã", "¤")]
_TEXTS = ("the theatre", "Füße über 漢字 👨‍👩‍👧", "a\x00b\tc\n\nd", "don't  stop — 42!", " the ", "▁e\u0301</s>")


@pytest.fixture
def splitter(tmp_path: Path) -> ByteLevelBpe:
    return ByteLevelBpe(tmp_path / "merges.json", json.dumps(_MERGES).encode())


def test_pairs_are_merged_in_words_only(splitter: ByteLevelBpe) -> None:
    assert splitter.split("the theü") == ["t", "he", "Ġthe", "Ã¼"]


def test_pieces_and_offsets_restore_every_text(splitter: ByteLevelBpe) -> None:
    sequences = map("".join, itertools.product(" aüäh\u0301漢👨", repeat=3))
    for text in (*_TEXTS, *(f"{characters}x" for characters in sequences)):
        joined, offsets = splitter.join_with_offsets(splitter.split(text))

        assert joined == text
        assert offsets == splitter.offsets(text)
        assert "".join(text[begin:end] for begin, end in offsets) == text


def test_invalid_utf8_becomes_replacement_characters(splitter: ByteLevelBpe) -> None:
    assert splitter.join_with_offsets(["a", "Ã", "b", "æ"]) == ("a\ufffdb\ufffd", [(0, 1), (1, 1), (1, 3), (3, 4)])


@pytest.mark.parametrize("text", ["", " \t\n"])
def test_invisible_text_has_no_pieces(splitter: ByteLevelBpe, text: str) -> None:
    assert splitter.split(text) == []
    assert splitter.offsets(text) == []
    assert splitter.join_with_offsets([]) == ("", [])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{}", "a JSON array of pairs of strings"),
        ('[["a"]]', "a JSON array of pairs of strings"),
        ('[["ab", "c"]]', "two pieces that earlier merges make"),
    ],
)
def test_invalid_file_is_rejected(tmp_path: Path, content: str, expected: str) -> None:
    with pytest.raises(BundleError, match=expected):
        ByteLevelBpe(tmp_path / "merges.json", content.encode())


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(BundleError, match="pip install tokenizers"):
        ByteLevelBpe(tmp_path / "merges.json", b"[]")


def test_tokenizer_uses_the_pieces_of_the_bundle(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, *(first + second for first, second in _MERGES)]
    (tmp_path / "merges.json").write_text(json.dumps(_MERGES), encoding="utf-8")
    (tmp_path / "pieces.json").write_text(json.dumps(pieces), encoding="utf-8")
    described = Tokenization(pieces="pieces.json", source_prefix=(0,), target_prefix=(0,))
    ids = SpecialIds(pad=1, bos=2, eos=2, unk=3)
    reference = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, _MERGES))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    tokenizer = SentencePieceTokenizer(tmp_path / "merges.json", described, ids)

    for text in _TEXTS:
        source_ids, target_ids = tokenizer.encode_pair(text, text)
        assert source_ids == target_ids == [0, *reference.encode(text).ids, 2]
        assert tokenizer.decode(target_ids) == text
        assert tokenizer.decode_with_offsets(tokenizer.encode(text)) == (text, tokenizer.offsets(text))
    assert tokenizer.vocabulary_size == len(pieces)
    assert all(map(tokenizer.spells, "aé漢😀²\u200b "))
    assert (tokenizer.byte_ids, tokenizer.filler) == (frozenset(), "")
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.encode("\ud800")
    with pytest.raises(BundleError, match="pieces, for byte-level BPE"):
        SentencePieceTokenizer(tmp_path / "merges.json")
