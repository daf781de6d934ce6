"""Inputs and results of a library."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

BEAM_SIZE, SHORTEST, LONGEST = 4, 5, 24
Pairs = Sequence[tuple[list[int], list[int]]]  # Token ids of sources and targets, EOS last where the system has it.


@dataclass(frozen=True)
class Said:
    """Results of a library for one of `System.pairs`."""

    log_probs: list[float]  # Of the tokens of the target.
    beam: list[int]  # The best target of a beam search without length penalty, padding and unknown tokens; EOS last.


def chosen(scores: Tensor, target_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token; scores [T, V]."""
    return [round(float(row[token_id]), 6) for row, token_id in zip(scores, target_ids, strict=True)]
