"""Finds the highest rate that still holds an objective: a pure search, told of each probe what came of it."""

import math
from typing import Final

_MAX_FALLS: Final = 12
"""Times the rate is lowered before the search gives up: below a hundredth of the start nothing is worth finding."""


class CapacitySearch:
    """Raises or lowers the rate by a factor until the capacity is between two rates, then halves what is between.

    One failure can be the machine's fault, so a rate fails only if it fails as often as asked for in a row.
    """

    def __init__(self, start_per_s: float, *, factor: float = 1.4, resolution: float = 0.05, tries: int = 1) -> None:
        """Begin.

        Args:
            start_per_s: the first rate, calls a second.
            factor: from one rate to the next until one holds and a higher one does not; above 1.
            resolution: the search is over when the lowest rate that failed is at most this share above the highest
                that held.
            tries: how often a rate may be probed until it holds.

        Raises:
            ValueError: if one is out of range.
        """
        if start_per_s <= 0 or factor <= 1 or resolution <= 0 or tries < 1:
            raise ValueError(f"no search from {start_per_s}/s by {factor} to {resolution} in {tries} tries")
        self._rate_per_s = start_per_s
        self._factor = factor
        self._resolution = resolution
        self._tries = tries
        self._num_failures = self._num_falls = 0
        self._low_per_s, self._high_per_s = 0.0, math.inf

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to probe."""
        gave_up = not self._low_per_s and self._num_falls > _MAX_FALLS
        return gave_up or self._high_per_s <= self._low_per_s * (1 + self._resolution)

    @property
    def rate_per_s(self) -> float:
        """What to probe next."""
        return self._rate_per_s

    @property
    def capacity_per_s(self) -> float:
        """The highest rate that held so far; 0: none did."""
        return self._low_per_s

    def note(self, *, holds: bool) -> None:
        """Take in what the probe came to."""
        if holds:
            self._low_per_s = max(self._low_per_s, self._rate_per_s)
        else:
            self._num_failures += 1
            if self._num_failures < self._tries:
                return  # once more
            self._high_per_s = min(self._high_per_s, self._rate_per_s)
            self._num_falls += 1
        self._num_failures = 0
        self._rate_per_s = self._next()

    def _next(self) -> float:
        if math.isinf(self._high_per_s):
            return self._low_per_s * self._factor
        if not self._low_per_s:
            return self._high_per_s / self._factor
        return math.sqrt(self._low_per_s * self._high_per_s)
