import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.text.alignment import align
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.tiny_bundle import tiny_vocabulary

# Texts that normalization changes, removes or lengthens, and characters that are encoded in bytes.
_SNIPPETS = st.sampled_from(
    ["The train", " ", "  ", "\t", "ﬁ", "…", "½", "ﷺ", "é", "e\u0301", "\u200b", "\xad", "🎉", "你", "ß.", "\x00", "▁"]
)
_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.lists(_SNIPPETS, max_size=8).map("".join)
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    path.write_bytes(tiny_vocabulary().model)
    return SentencePieceTokenizer(path)


def _assert_in_order(text: str, offsets: list[tuple[int, int]]) -> None:
    edges = [0, *(edge for offset in offsets for edge in offset), len(text)]
    assert edges == sorted(edges)


@given(_TEXTS)
def test_each_token_has_an_offset_in_the_text(tokenizer: SentencePieceTokenizer, text: str) -> None:
    offsets = tokenizer.offsets(text)

    assert len(offsets) == len(tokenizer.encode(text))
    _assert_in_order(text, offsets)


@given(st.lists(st.integers(4, 319), max_size=20))
def test_each_decoded_token_has_an_offset_in_the_text(tokenizer: SentencePieceTokenizer, token_ids: list[int]) -> None:
    text, offsets = tokenizer.decode_with_offsets(token_ids)

    assert text == tokenizer.decode(token_ids)
    assert len(offsets) == len(token_ids)
    _assert_in_order(text, offsets)
    covered = {index for start, end in offsets for index in range(start, end)}
    assert all(index in covered for index, char in enumerate(text) if not char.isspace())


@given(_TEXTS, st.lists(st.integers(4, 319), max_size=20), st.integers(0, 2**32 - 1))
def test_links_cover_the_visible_target_once(
    tokenizer: SentencePieceTokenizer, source: str, target_ids: list[int], seed: int
) -> None:
    source_offsets = tokenizer.offsets(source)
    target, target_offsets = tokenizer.decode_with_offsets(target_ids)
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(source_offsets) + 1), size=len(target_ids) + 1)

    links = align(
        shares.astype(np.float32),
        source=source,
        source_offsets=source_offsets,
        target=target,
        target_offsets=target_offsets,
    )

    covered = [index for link in links for index in range(link.target.start, link.target.end)]
    assert covered == sorted(set(covered))
    assert all(0 <= link.weight <= 1 for link in links)
    assert all(source[link.source.start : link.source.end].strip() for link in links)
    assert all(target[link.target.start : link.target.end].strip() for link in links)
    if any(source[start:end].strip() for start, end in source_offsets):
        assert all(index in set(covered) for index, char in enumerate(target) if not char.isspace())
    else:
        assert links == []
