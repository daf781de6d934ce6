"""Settings of a soak, and the check of its memory."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from loadtests.report.report import Check

_LONG_S: Final = 900.0
_MAX_GROWTH_SHORT_MB: Final = 24.0
_MAX_GROWTH_MB: Final = 16.0
_Z: Final = 1.959964  # two-sided 95 % quantile of the normal distribution
_MIN_WINDOWS: Final = 6
_MAX_WINDOWS: Final = 30
_WINDOW_S: Final = 8.0  # shortest mean duration of a window

Sample = Mapping[str, float]  # at_s, rss_mb, threads, fds; calls and swaps so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Duration and amount of load."""

    duration_s: float
    num_callers: int = 16
    load_share: float = 0.65  # of the calibrated calls per second
    swap_each_s: float = 6.0
    growth_limit_mb: float | None = None  # in the judged time; None: 24, or 16 for a long run
    seed: int = 1
    traffic: str = "everything"

    @property
    def warm_up_s(self) -> float:
        """Seconds from the start in which memory is not judged."""
        return min(self.duration_s / 3, 240.0)

    @property
    def is_long(self) -> bool:
        """Return whether memory that is too noisy to judge fails the check."""
        return self.duration_s >= _LONG_S

    @property
    def max_slope(self) -> float:
        """Limit of the growth in MiB per hour."""
        max_growth_mb = self.growth_limit_mb or (_MAX_GROWTH_MB if self.is_long else _MAX_GROWTH_SHORT_MB)
        return max_growth_mb / (self.duration_s - self.warm_up_s) * 3600


def check_memory(samples: Sequence[Sample], settings: Settings) -> tuple[Check, list[str]]:
    """Check the slope of the memory; also return a note if a short run is too noisy to judge.

    The slope is the Theil-Sen estimate with the interval of Sen 1968 (doi:10.1080/01621459.1968.10480934), from the
    variance of Kendall's statistic: independent of the distribution of the noise, with a breakdown point of 29 %. Fewer
    than 6 points have no interval of 95 %.
    """
    name, points, limit = "memory does not grow", window_minima(samples, settings), settings.max_slope
    if (count := len(points)) < _MIN_WINDOWS:
        return Check(name=name, failures=["the run is too short to judge"]), []
    slopes = sorted((y2 - y1) / (x2 - x1) * 3600 for (x1, y1), (x2, y2) in itertools.combinations(points, 2))
    spread = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = slopes[max(0, round((len(slopes) - spread) / 2))]
    highest = slopes[min(len(slopes) - 1, round((len(slopes) + spread) / 2))]
    slope, noise = median(slopes), (highest - lowest) / 2
    interval = f"{slope:.1f} MB/h (95 % confidence: {lowest:.1f} to {highest:.1f} MB/h)"
    growth = [f"growth of {interval} exceeds {limit:.1f}"] if lowest > limit else []
    noisy = [f"change of {interval} is too noisy for the limit {limit:.1f}; run longer"] if noise > limit else []
    failures = growth or (noisy if settings.is_long else [])
    figures = {"slope": slope, "lowest": lowest, "highest": highest, "noise": noise, "limit": limit}
    return Check(name=name, failures=failures, figures=figures), [] if noisy == failures else noisy


def window_minima(samples: Sequence[Sample], settings: Settings) -> list[tuple[float, float]]:
    """Return time and minimum memory in MiB of each window of whole swaps, under load and after the warm-up.

    A second version or a large document takes memory temporarily; the minima show lasting memory. Windows count swaps
    instead of seconds, so that each contains a time with one version, however long a swap takes on a busy machine.
    """
    judged = [sample for sample in samples if settings.warm_up_s <= sample["at_s"] <= settings.duration_s]
    if not judged or judged[0]["swaps"] == judged[-1]["swaps"]:
        return []
    first, num_swaps = judged[0]["swaps"] + 1, judged[-1]["swaps"] - judged[0]["swaps"]
    num_windows = min(int((settings.duration_s - settings.warm_up_s) / _WINDOW_S), _MAX_WINDOWS, num_swaps)
    counted = [sample for sample in judged if sample["swaps"] >= first]
    windows = itertools.groupby(counted, lambda sample: (sample["swaps"] - first) * num_windows // num_swaps)
    minima = (min(window, key=lambda sample: sample["rss_mb"]) for _, window in windows)
    return [(one["at_s"], one["rss_mb"]) for one in minima]
