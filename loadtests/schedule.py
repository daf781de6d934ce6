"""The schedule of a run, and each process's share of it: made of nothing but settings, so that all make the same."""

from dataclasses import dataclass

from loadtests.arrivals import Arrivals, Poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One call to come."""

    number: int
    """Which call of the workload it is."""

    offset_s: float
    """From the start of the run, its warm-up included."""

    method: str | None = None
    """Name of the method if the arrivals say it, as a trace may."""


def make_schedule(arrivals: Arrivals, *, warm_up_s: float, duration_s: float, seed: int) -> list[Arrival]:
    """Return all calls in the order of their times: random ones at the same rate to warm up, then the arrivals."""
    warm_up = Poisson(arrivals.rate_per_s).times(warm_up_s, seed + 1) if warm_up_s > 0 else []
    times = [warm_up_s + offset_s for offset_s in arrivals.times(duration_s, seed)]
    methods = [*[None] * len(warm_up), *arrivals.methods, *[None] * len(times)]
    return [
        Arrival(number=number, offset_s=offset_s, method=method)
        for number, (offset_s, method) in enumerate(zip([*warm_up, *times], methods, strict=False))
    ]
