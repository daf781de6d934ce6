"""What capacity means here, and how it is found: the one definition, and the one search, of every figure of capacity.

The capacity of a server is the highest rate of calls, which arrive at random moments whatever became of those before
(Poisson), at which an objective holds: by default 95 % of the calls end within 1 s of when they should have been sent,
and more than 99 % are answered before their deadline. It depends on what calls ask for (a sentence each by default),
on the objective, and on the machine, and is given together with them. It is found as follows.

1. 32 callers who each wait for the answer before the next call tell the throughput to begin near.
2. Rates from 0.8 times that are probed for some seconds each, raised by 1.4 until the objective breaks (lowered until
   it holds), and what is between is halved until the lowest rate that failed is at most 5 % above the highest that
   held. A rate fails only if the objective breaks there as often as `SearchPlan.tries` says.
3. The highest rate that held is the capacity.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from loadtests.records import Summary
from loadtests.slo import Slo

DEFAULT_SLO: Final = "p95<1s,goodput>99%"
"""The objective of a capacity where none is named."""

SHARES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Of the capacity, at which a curve is measured."""

_SAFE_START: Final = 0.8
"""Share of the throughput of callers who wait at which a search begins."""
_MAX_FALLS: Final = 12
"""Times the rate is lowered before the search gives up: below a hundredth of the start nothing is worth finding."""

Name = TypeVar("Name", bound=str)


class System(Protocol):
    """A server that load can be offered to."""

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Have so many calls a second arrive at random moments; return what came of those that count."""

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Return the calls answered in a second for many callers who wait for their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system under one rate for a while."""

    rate_per_s: float
    """Calls that were to come, by the second."""

    seed: int
    summary: Summary

    @property
    def p50_ms(self) -> float:
        """Latency; infinite if no call was answered."""
        return self.summary.latency.p50_ms if self.summary.latency else math.inf

    @property
    def p95_ms(self) -> float:
        """Latency; infinite if no call was answered."""
        return self.summary.latency.p95_ms if self.summary.latency else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One step of a search."""

    run: Run
    broken: tuple[str, ...]
    """What did not hold; empty: all did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate at which a system holds the objective."""

    per_s: float
    """0: it held at no rate that was tried."""

    closed_loop_per_s: float
    """Calls answered in a second for callers who wait: where the search began."""

    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How thoroughly is searched."""

    closed_loop_s: float
    probe_s: float
    """Of each probe."""

    tries: int = 1
    """How often a rate is probed until it holds, before it counts as too high: one failure can be the machine's."""

    resolution: float = 0.05
    """Share by which a capacity may be too low."""

    seed: int = 1


PLANS: Final[Mapping[str, SearchPlan]] = {
    "full": SearchPlan(closed_loop_s=10.0, probe_s=15.0, tries=2),
    "short": SearchPlan(closed_loop_s=3.0, probe_s=3.0, resolution=0.2),
}
"""By mode of a command."""


def find_capacities(
    systems: Mapping[Name, System], slo: Slo, plan: SearchPlan, *, note: Callable[[Name, Probe], None]
) -> dict[Name, Capacity]:
    """Search the capacity of each system, a probe of each after the other; `note` is told of every probe."""
    throughputs = {name: system.throughput_per_s(duration_s=plan.closed_loop_s) for name, system in systems.items()}
    searches = {
        name: CapacitySearch(_SAFE_START * per_s, tries=plan.tries, resolution=plan.resolution)
        for name, per_s in throughputs.items()
    }
    probes: dict[Name, list[Probe]] = {name: [] for name in systems}
    while not all(search.is_over for search in searches.values()):
        for name, search in searches.items():
            if search.is_over:
                continue
            probed = run(systems[name], search.rate_per_s, plan.probe_s, plan.seed + len(probes[name]))
            probe = Probe(run=probed, broken=tuple(slo.broken(probed.summary)))
            probes[name].append(probe)
            note(name, probe)
            search.note(holds=not probe.broken)
    return {
        name: Capacity(
            per_s=searches[name].capacity_per_s, closed_loop_per_s=throughputs[name], probes=tuple(probes[name])
        )
        for name in systems
    }


def find_capacity(system: System, slo: Slo, plan: SearchPlan, *, note: Callable[[Probe], None]) -> Capacity:
    """Search the capacity of one system.

    Raises:
        RuntimeError: if the objective holds at no rate.
    """
    capacity = find_capacities({"it": system}, slo, plan, note=lambda _, probe: note(probe))["it"]
    if not capacity.per_s:
        raise RuntimeError(f"{slo} holds at no rate that was tried; give another --slo")
    return capacity


def run(system: System, rate_per_s: float, duration_s: float, seed: int) -> Run:
    """Offer load once."""
    summary = system.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
    return Run(rate_per_s=rate_per_s, seed=seed, summary=summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Latency and throughput at one rate of a curve."""

    share: float
    """Of the capacity."""

    run: Run


def measure_curve(
    system: System, capacity_per_s: float, *, duration_s: float, seed: int, note: Callable[[Point], None]
) -> tuple[Point, ...]:
    """Offer load at each of `SHARES` of the capacity, the smallest first, each with the next seed."""
    points = []
    for index, share in enumerate(SHARES):
        points.append(Point(share=share, run=run(system, share * capacity_per_s, duration_s, seed + index)))
        note(points[-1])
    return tuple(points)


class CapacitySearch:
    """Raises or lowers the rate by a factor until the capacity is between two rates, then halves what is between."""

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
        self.rate_per_s = start_per_s
        """What to probe next."""
        self.capacity_per_s = 0.0
        """The highest rate that held so far; 0: none did."""
        self._factor = factor
        self._resolution = resolution
        self._tries = tries
        self._num_failures = self._num_falls = 0
        self._too_high_per_s = math.inf

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to probe."""
        gave_up = not self.capacity_per_s and self._num_falls > _MAX_FALLS
        return gave_up or self._too_high_per_s <= self.capacity_per_s * (1 + self._resolution)

    def note(self, *, holds: bool) -> None:
        """Take in what the probe came to."""
        if holds:
            self.capacity_per_s = max(self.capacity_per_s, self.rate_per_s)
        else:
            self._num_failures += 1
            if self._num_failures < self._tries:
                return  # once more
            self._too_high_per_s = min(self._too_high_per_s, self.rate_per_s)
            self._num_falls += 1
        self._num_failures = 0
        self.rate_per_s = self._next()

    def _next(self) -> float:
        if math.isinf(self._too_high_per_s):
            return self.capacity_per_s * self._factor
        if not self.capacity_per_s:
            return self._too_high_per_s / self._factor
        return math.sqrt(self.capacity_per_s * self._too_high_per_s)
