"""Medians, percentiles and ratios of repeated measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of some repetitions, and how far they lie apart."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least one value."""
        return cls(median=median(values), lowest=min(values), highest=max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed (nearest rank).

    Args:
        values: at least one, in any order.
        share: above 0, at most 1.

    Raises:
        ValueError: if there is no value, or the share is out of range.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def share_of_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of places, of at least one, at which both hold the same."""
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
