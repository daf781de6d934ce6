"""The curve: what callers wait at rates from a little of the capacity to more than all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.capacity.contender import Contender, Run, run

SHARES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Of the capacity, at which a curve is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Latency and throughput at one rate."""

    share: float
    """Of the capacity."""

    run: Run

    @property
    def throughput_per_s(self) -> float:
        """Calls answered before their deadline, by the second."""
        return self.run.summary.goodput_per_s


def measure_curve(
    contender: Contender,
    capacity_per_s: float,
    *,
    duration_s: float,
    seed: int,
    shares: Sequence[float] = SHARES,
    note: Callable[[Point], None],
) -> tuple[Point, ...]:
    """Offer load at each share of the capacity, the smallest first; each run begins when the one before has ended.

    Args:
        contender: gets it.
        capacity_per_s: calls a second.
        duration_s: of each run.
        seed: of the first run; each further one has the next.
        shares: of the capacity.
        note: told of every point.
    """
    points = []
    for index, share in enumerate(sorted(shares)):
        rate_per_s = share * capacity_per_s
        points.append(Point(share=share, run=run(contender, rate_per_s, duration_s, seed + index)))
        note(points[-1])
    return tuple(points)
