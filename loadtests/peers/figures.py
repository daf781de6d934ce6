"""Medians and ratios of repeated measurements."""

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


def share_of_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of places, of at least one, at which both hold the same."""
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
