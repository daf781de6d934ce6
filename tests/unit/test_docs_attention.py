"""Shares of attention in the documentation (`docs/attention.py`)."""

from pathlib import Path

import pytest
import torch

from docs import attention
from docs.attention import aligned_words, head_shares, plot_heads, preferred
from dragoman_export.data.lexicon import learn_lexicon
from dragoman_export.data.reader import Pair
from tests.tiny_bundle import SENTENCES, build_tiny_bundle

PAIRS = [
    Pair(source=source, target=target, location="") for source, target in zip(SENTENCES[:4], SENTENCES[4:], strict=True)
]


def test_aligned_word_has_all_its_tokens_and_agrees_in_both_directions() -> None:
    sources, targets = [[1, 2, 3], [1, 2], [3], [4, 5]], [[6, 7], [6], [7], [8]]
    forward, backward = (
        learn_lexicon(list(zip(*sides, strict=True)), vocabulary_size=10)
        for sides in ((sources, targets), (targets, sources))
    )

    points = aligned_words([1, 2, 3, 0], [6, 7, 0], [1, 1, 2, 2], forward, backward)

    # tokens 1 and 2 are one word, a translation of 6; EOS is the last token
    assert points.tolist()[0] == [1, 1, 0, 0]
    assert points.tolist()[1] == [0, 0, 1, 1]
    assert points.tolist()[2] == [0, 0, 0, 0]


def test_shares_count_the_queries_that_have_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(_: object, source: list[int], target: list[int]) -> dict[str, torch.Tensor]:
        size, length = len(source), len(target)
        follow = torch.eye(size).roll(1, -1)
        return {
            "encoder": torch.stack([0.75 * follow + 0.25 / size, torch.eye(size)])[None],
            "decoder": torch.eye(length)[None, None],
            "cross": torch.full((1, 1, length, size), 1 / size),
        }

    monkeypatch.setattr(attention, "attention_weights", weights)

    shares = head_shares(build_tiny_bundle(tmp_path / "tiny").directory, PAIRS, PAIRS)

    assert [preferred(shares["encoder"][head]) for head in ("1.1", "1.2")] == ["next", "same"]
    assert shares["encoder"]["1.1"]["next"]["maximum"] == 1
    assert 0.75 < shares["encoder"]["1.1"]["next"]["weight"] < 0.8
    assert shares["encoder"]["1.2"]["previous"] == {"weight": 0, "maximum": 0}
    assert shares["decoder"]["1.1"]["same"] == {"weight": 1, "maximum": 1}
    assert shares["cross"]["1.1"]["aligned"]["weight"] == pytest.approx(shares["cross"]["uniform"]["aligned"]["weight"])
    assert len(plot_heads({"en-de": shares}).axes) == len(shares)
