"""Settings of a soak, and the check of its memory."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from loadtests.report.report import Check

SWAPS_PER_PHASE: Final = 3  # each way of a swap once, so that phases are equal
_MAX_GROWTH_MB: Final = 16.0  # in the judged time
_NUM_WARM_UP_PHASES: Final = 2
_MIN_PHASES: Final = 6  # fewer have no interval of 95 %
_MAX_MORE_PHASES: Final = 8  # if the memory is too noisy
_Z: Final = 1.959964  # two-sided 95 % quantile of the normal distribution

Sample = Mapping[str, float]  # at_s, rss_mb, threads, fds; calls and swaps so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Duration and amount of load."""

    duration_s: float
    num_callers: int = 16
    load_share: float = 0.65  # of the calibrated calls per second
    swap_each_s: float = 6.0
    growth_limit_mb: float = _MAX_GROWTH_MB  # in the judged phases
    seed: int = 1
    traffic: str = "everything"

    @property
    def phase_s(self) -> float:
        """Seconds of load in each phase."""
        return SWAPS_PER_PHASE * self.swap_each_s

    @property
    def num_phases(self) -> int:
        """Number of phases, those that warm up included."""
        return max(1, round(self.duration_s / self.phase_s))


def needs_phase(settled_mb: Sequence[float], settings: Settings) -> bool:
    """Return whether the run continues: phases are left, or its memory is too noisy and more phases are allowed."""
    more = len(settled_mb) - settings.num_phases
    figures = check_memory(settled_mb, settings).figures
    is_noisy = bool(figures) and figures["lowest"] <= figures["limit"] < figures["highest"]
    return more < 0 or (is_noisy and more < _MAX_MORE_PHASES)


def check_memory(settled_mb: Sequence[float], settings: Settings) -> Check:
    """Check that the memory between phases of equal load does not grow.

    The growth per phase is the Theil-Sen estimate with the interval of Sen 1968 (doi:10.1080/01621459.1968.10480934),
    from the variance of Kendall's statistic: independent of the distribution of the noise, with a breakdown point of
    29 %. The check passes only if the whole interval is within the limit.

    Args:
        settled_mb: memory of the idle server after each phase, in MiB.
        settings: limit and number of phases that are not judged.
    """
    name, judged = "memory does not grow", settled_mb[_NUM_WARM_UP_PHASES:]
    if (count := len(judged)) < _MIN_PHASES:
        return Check(name=name, failures=["the run is too short to judge"])
    slopes = sorted((later - one) / (j - i) for (i, one), (j, later) in itertools.combinations(enumerate(judged), 2))
    spread = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = slopes[max(0, math.floor((len(slopes) - spread) / 2))]
    highest = slopes[min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))]
    growth = median(slopes)
    limit = settings.growth_limit_mb / (settings.num_phases - _NUM_WARM_UP_PHASES - 1)
    interval = f"{growth:.2f} MB per phase (95 % confidence: {lowest:.2f} to {highest:.2f})"
    failures = []
    if highest > limit:
        verdict = "exceeds" if lowest > limit else "is too noisy for"
        failures = [f"growth of {interval} {verdict} the limit {limit:.2f}"]
    figures = {"growth": growth, "lowest": lowest, "highest": highest, "limit": limit}
    return Check(name=name, failures=failures, figures=figures)
