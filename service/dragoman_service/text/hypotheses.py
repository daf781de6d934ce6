"""N-best lists: the best combinations of the hypotheses of several parts, without equal texts."""

import heapq
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


def best_combinations(ranks: Sequence[Sequence[tuple[int, bool, float]]], *, count: int) -> list[tuple[int, ...]]:
    """Return the best `count` combinations of one hypothesis per row, as indices into the rows; best first.

    Hypotheses with fewer hard violations come first, then finished ones, then those with a larger sum of scores, then
    the better hypothesis in an earlier row. Keeping the best `count` after each row is exact, because every extension
    preserves the order.

    Args:
        ranks: for each row, best first and not empty: hard violations of each hypothesis, whether it is unfinished,
            and its negated score.
        count: number of combinations, at least 1.
    """
    best = [((0, 0, 0.0), 0)]  # sums of the ranks, and rank by indices
    steps: list[list[tuple[int, int]]] = []  # for each row: number of the extended combination, and the index
    for row in ranks:
        extended = [
            ((num_hard + own_hard, num_unfinished + is_unfinished, cost + own_cost), (rank, index), number)
            for number, ((num_hard, num_unfinished, cost), rank) in enumerate(best)
            # The others have `count` before them.
            for index, (own_hard, is_unfinished, own_cost) in enumerate(row[: count // (number + 1)])
        ]
        chosen = heapq.nsmallest(count, extended)
        orders = {key: rank for rank, key in enumerate(sorted(key for _, key, _ in chosen))}
        best = [(sums, orders[key]) for sums, key, _ in chosen]
        steps.append([(number, index) for _, (_, index), number in chosen])
    combinations = []
    for number in range(len(best)):
        indices = []
        for step in reversed(steps):
            number, index = step[number]  # noqa: PLW2901 - traces one combination back
            indices.append(index)
        combinations.append(tuple(reversed(indices)))
    return combinations


def distinct(candidates: Sequence[_T], texts: Sequence[str]) -> list[_T]:
    """Return the first candidate of each text in order, without the empty text if there is another."""
    firsts: dict[str, _T] = {}
    for candidate, text in zip(candidates, texts, strict=True):
        firsts.setdefault(text, candidate)
    if len(firsts) > 1:
        firsts.pop("", None)
    return list(firsts.values())
