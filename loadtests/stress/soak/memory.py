"""Whether memory grows: a robust slope through the lows of a noisy curve, and how sure it is. Pure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

_Z: Final = 1.959964
"""Quantile of the normal distribution for a confidence of 95 %, on both sides."""
_MIN_WINDOWS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How memory changes, in MiB per hour."""

    slope: float
    lowest: float
    """With a confidence of 95 % the true slope is between this and `highest`."""

    highest: float

    @property
    def noise(self) -> float:
        """How far the slope may be off: half of the interval."""
        return (self.highest - self.lowest) / 2

    def __str__(self) -> str:
        return f"{self.slope:.1f} MB/h, with 95 % confidence between {self.lowest:.1f} and {self.highest:.1f} MB/h"


def lows(samples: Sequence[tuple[float, float, int]], *, num_windows: int) -> list[tuple[float, float]]:
    """Return the smallest value of each window of whole swaps, and when it was.

    A version that is loaded beside another, or a large document, takes memory for a while and frees it: what stays is
    seen in the lows. Windows are counted in swaps, not in seconds, so that each of them has a time with one version
    however long a swap takes on a busy machine.

    `samples` are (seconds, value, number of swaps so far), ascending; those before the first swap do not count.
    """
    first, last = (samples[0][2] + 1, samples[-1][2]) if samples else (0, -1)
    windows: dict[int, list[tuple[float, float]]] = {}
    for at_s, value, num_swaps in samples:
        if num_swaps >= first:
            index = (num_swaps - first) * min(num_windows, last - first + 1) // (last - first + 1)
            windows.setdefault(index, []).append((at_s, value))
    return [min(window, key=lambda sample: sample[1]) for window in windows.values()]


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the Theil-Sen slope of (seconds, MiB), with its interval of 95 %.

    The interval is that of Sen 1968 (doi:10.1080/01621459.1968.10480934), from the variance of Kendall's statistic: it
    assumes nothing of how the noise is distributed, and up to 29 % of the points may be anywhere.

    Fewer than 6 points have no interval of 95 %, and no trend: None.
    """
    count = len(points)
    if count < _MIN_WINDOWS:
        return None
    slopes = sorted((y2 - y1) / (x2 - x1) * 3600 for (x1, y1), (x2, y2) in itertools.combinations(points, 2))
    spread = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = max(0, round((len(slopes) - spread) / 2))
    highest = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Trend(slope=median(slopes), lowest=slopes[lowest], highest=slopes[highest])


def growth(found: Trend, *, max_slope: float) -> list[str]:
    """Return a sentence if memory grows faster than this, in MiB per hour, with a confidence of 95 %."""
    return [f"it grows by {found}: more than {max_slope:.1f}"] if found.lowest > max_slope else []


def doubt(found: Trend, *, max_slope: float) -> list[str]:
    """Return a sentence if memory changes too unevenly to be held to this limit, in MiB per hour."""
    hint = "look at the curve or run longer"
    told = f"it changes by {found}: too uneven to judge by {max_slope:.1f}, {hint}"
    return [told] if found.noise > max_slope else []
