"""Inputs and results of a library."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

BEAM_SIZE, SHORTEST, LONGEST = 4, 5, 24
Pairs = Sequence[tuple[list[int], list[int]]]  # token ids of sources and targets, EOS last if the system uses it


@dataclass(frozen=True)
class LibraryResult:
    """Results of a library for one of `System.pairs`."""

    log_probs: list[float]  # of the target tokens
    beam: list[int]  # best target of a beam search without length penalty, padding and unknown tokens; EOS last


def chosen(scores: Tensor, target_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token; scores [T, V]."""
    return [round(float(row[token_id]), 6) for row, token_id in zip(scores, target_ids, strict=True)]
