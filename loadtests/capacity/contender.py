"""Whoever load is offered to, what came of it, and how much it bears."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from loadtests.capacity.search import CapacitySearch
from loadtests.records import Summary
from loadtests.slo import Slo

_SAFE_START = 0.8
"""Share of the throughput of callers who wait at which a search begins."""

Name = TypeVar("Name", bound=str)


class Contender(Protocol):
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
        return self.summary.latency.p50_ms if self.summary.latency else float("inf")

    @property
    def p95_ms(self) -> float:
        """Latency; infinite if no call was answered."""
        return self.summary.latency.p95_ms if self.summary.latency else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One step of a capacity search."""

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
    """Of the callers who wait, in the beginning."""

    probe_s: float
    """Of each step."""

    tries: int = 1
    """How often a rate is probed until it holds, before it counts as too high."""

    resolution: float = 0.05
    """Share by which a capacity may be too low."""

    seed: int = 1


def run(contender: Contender, rate_per_s: float, duration_s: float, seed: int) -> Run:
    """Offer load once."""
    summary = contender.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
    return Run(rate_per_s=rate_per_s, seed=seed, summary=summary)


def find_capacities(
    contenders: Mapping[Name, Contender], slo: Slo, plan: SearchPlan, *, note: Callable[[Name, Probe], None]
) -> dict[Name, Capacity]:
    """Search the capacity of each contender, a step of each in turn.

    Args:
        contenders: by name.
        slo: what must hold.
        plan: how thoroughly.
        note: told of every step.
    """
    throughputs = {
        name: contender.throughput_per_s(duration_s=plan.closed_loop_s) for name, contender in contenders.items()
    }
    searches = {
        name: CapacitySearch(_SAFE_START * per_s, tries=plan.tries, resolution=plan.resolution)
        for name, per_s in throughputs.items()
    }
    probes: dict[Name, list[Probe]] = {name: [] for name in contenders}
    while not all(search.is_over for search in searches.values()):
        for name, search in searches.items():
            if search.is_over:
                continue
            seed = plan.seed + len(probes[name])
            probed = run(contenders[name], search.rate_per_s, plan.probe_s, seed)
            probes[name].append(Probe(run=probed, broken=tuple(slo.broken(probed.summary))))
            note(name, probes[name][-1])
            search.note(holds=not probes[name][-1].broken)
    return {
        name: Capacity(
            per_s=searches[name].capacity_per_s, closed_loop_per_s=throughputs[name], probes=tuple(probes[name])
        )
        for name in contenders
    }
