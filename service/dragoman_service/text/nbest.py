"""N-best lists of texts from those of their sentences."""

import heapq
from collections.abc import Sequence
from typing import TypeVar

from dragoman_service.datatypes import Hypothesis

_T = TypeVar("_T")


def best_combinations(hypotheses: Sequence[Sequence[Hypothesis]], *, count: int) -> list[tuple[int, ...]]:
    """Return the best `count` combinations of one hypothesis per row, as indices into the rows; best first.

    As within a sentence, finished hypotheses come first: fewer unfinished ones, then the larger sum of scores, then
    the better hypothesis in an earlier row. Keeping the best `count` after each row is exact, because every extension
    preserves the order. Each row is best first, and not empty.
    """
    best = [(0, 0.0, 0)]  # unfinished hypotheses, negated score, rank by indices
    steps: list[list[tuple[int, int]]] = []  # for each row: number of the extended combination, and the index
    for row in hypotheses:
        extended = [
            (num_unfinished + (not hypothesis.is_finished), cost - hypothesis.score, (rank, index), number)
            for number, (num_unfinished, cost, rank) in enumerate(best)
            for index, hypothesis in enumerate(row[: count // (number + 1)])  # the others have `count` before them
        ]
        chosen = heapq.nsmallest(count, extended)
        ranks = {key: rank for rank, key in enumerate(sorted(key for _, _, key, _ in chosen))}
        best = [(num_unfinished, cost, ranks[key]) for num_unfinished, cost, key, _ in chosen]
        steps.append([(number, index) for _, _, (_, index), number in chosen])
    return [_traced_back(steps, number) for number in range(len(best))]


def distinct(candidates: Sequence[_T], texts: Sequence[str]) -> list[_T]:
    """Return the first candidate of each text in order, without the empty text if there is another."""
    firsts: dict[str, _T] = {}
    for candidate, text in zip(candidates, texts, strict=True):
        firsts.setdefault(text, candidate)
    if len(firsts) > 1:
        firsts.pop("", None)
    return list(firsts.values())


def _traced_back(steps: Sequence[Sequence[tuple[int, int]]], number: int) -> tuple[int, ...]:
    indices = []
    for row in reversed(steps):
        number, index = row[number]
        indices.append(index)
    return tuple(reversed(indices))
