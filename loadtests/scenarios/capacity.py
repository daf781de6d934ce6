"""What capacity means here, and how it is found: one definition, and one search, for every figure of capacity."""

import argparse
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from matplotlib.figure import Figure
from tqdm import tqdm

from loadtests import offer
from loadtests.generator.flags import flags_of, parsed_by, within
from loadtests.generator.records import Summary
from loadtests.report.report import Report, circumstances, figure, markdown, plot, rounded, unclean_end
from loadtests.generator.slo import GRAMMAR, Slo, parse_slo
from loadtests.generator.server import Target
from loadtests.generator.workload import Workload

NAME: Final = "capacity"
DESCRIPTION: Final = """\
Finds the capacity of a server: the highest rate of calls at which an objective holds. It depends on what calls ask for,
on the objective and on the machine, and is given together with them. Then offers shares of it, from a tenth to 120 %,
and draws latency and throughput against load. Without --target it starts a server on free ports of this machine, with
the model that ships.

Callers who wait for each answer tell where to begin. From there the rate is raised until the objective breaks, and
what is between is halved until it is known to 5 %; a rate counts as too high if the objective breaks twice there
(--mode short: to 20 %, and once).

Calls arrive at random moments (Poisson), whatever became of those before; times count from the moment at which a call
should have been sent. They are sent by gRPC's own threads, which takes less of the machine than Locust does: the
generator shares the cores with a server on the same machine.

OUTPUT gets capacity.json and capacity.png.

exit codes: 0 measured; 1 the objective held at no rate, or the server failed; 2 called wrongly"""

DEFAULT_SLO: Final = "p95<1s,goodput>99%"
"""The objective of a capacity where none is named."""

SHARES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Of the capacity, at which a curve is measured."""

_POINT_S: Final = {"full": 20.0, "short": 3.0}  # seconds at each rate of the curve, by mode
_SAFE_START: Final = 0.8  # share of the throughput of callers who wait at which a search begins
_MAX_FALLS: Final = 12
"""Times the rate is lowered before the search gives up: below a hundredth of the start nothing is worth finding."""
_LATENCIES: Final = {"p50": "tab:blue", "p95": "tab:orange", "p99": "tab:red"}

Name = TypeVar("Name", bound=str)


class System(Protocol):
    """A server that load can be offered to."""

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Have so many calls a second arrive at random moments; return what came of those that count."""

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Return the calls answered in a second for many callers who wait for their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system under one rate, calls that were to come by the second, for a while."""

    rate_per_s: float
    seed: int
    summary: Summary

    @property
    def p50_ms(self) -> float:
        """Latency; infinite if no call was answered."""
        return self.summary.latency.p50_ms if self.summary.latency else math.inf

    @property
    def p95_ms(self) -> float:
        """As `p50_ms`."""
        return self.summary.latency.p95_ms if self.summary.latency else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One step of a search, and what did not hold in it."""

    run: Run
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate at which a system holds the objective; 0: it held at none that was tried."""

    per_s: float
    closed_loop_per_s: float  # calls answered in a second for callers who wait: where the search began
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How thoroughly is searched, and for how long each time."""

    closed_loop_s: float
    probe_s: float
    tries: int = 1
    """How often a rate is probed until it holds, before it counts as too high: one failure can be the machine's."""

    resolution: float = 0.05  # share by which a capacity may be too low
    seed: int = 1


PLANS: Final[Mapping[str, SearchPlan]] = {
    "full": SearchPlan(closed_loop_s=10.0, probe_s=15.0, tries=2),
    "short": SearchPlan(closed_loop_s=3.0, probe_s=3.0, resolution=0.2),
}
"""By mode of a command."""


def find_capacities(
    systems: Mapping[Name, System], slo: Slo, plan: SearchPlan, *, note: Callable[[], object] = lambda: None
) -> dict[Name, Capacity]:
    """Search the capacity of each system, a probe of each after the other; `note` is called after each."""
    throughputs = {name: system.throughput_per_s(duration_s=plan.closed_loop_s) for name, system in systems.items()}
    searches = {
        name: search_rates(_SAFE_START * per_s, resolution=plan.resolution, tries=plan.tries)
        for name, per_s in throughputs.items()
    }
    rates = {name: next(search) for name, search in searches.items()}
    probes: dict[Name, list[Probe]] = {name: [] for name in systems}
    found: dict[Name, float] = {}
    while rates:
        for name, rate_per_s in list(rates.items()):
            probed = run(systems[name], rate_per_s, plan.probe_s, plan.seed + len(probes[name]))
            broken = tuple(slo.broken(probed.summary))
            probes[name].append(Probe(run=probed, broken=broken))
            note()
            try:
                rates[name] = searches[name].send(not broken)
            except StopIteration as over:
                found[name] = over.value
                del rates[name]
    return {
        name: Capacity(per_s=found[name], closed_loop_per_s=throughputs[name], probes=tuple(probes[name]))
        for name in systems
    }


def search_rates(
    start_per_s: float, *, factor: float = 1.4, resolution: float = 0.05, tries: int = 1
) -> Generator[float, bool, float]:
    """Yield a rate to probe, and take whether it held, until the highest that does is known; that is returned.

    From the start, in calls a second, the rate is raised or lowered by the factor until one holds and a higher one does
    not, each probed so many times until it holds; then what is between is halved, until the lowest that failed is at
    most the share `resolution` above the highest that held. If none holds, 0 is returned. ValueError if it cannot end.
    """
    if start_per_s <= 0 or factor <= 1 or resolution <= 0 or tries < 1:
        raise ValueError(f"no search from {start_per_s}/s by {factor} to {resolution} in {tries} tries")
    rate_per_s, held_per_s, failed_per_s, num_falls = start_per_s, 0.0, math.inf, 0
    while failed_per_s > held_per_s * (1 + resolution) and num_falls <= _MAX_FALLS:
        for _ in range(tries):
            if (yield rate_per_s):
                held_per_s = rate_per_s
                break
        else:
            failed_per_s = rate_per_s
        if math.isinf(failed_per_s):
            rate_per_s *= factor
        elif not held_per_s:
            rate_per_s /= factor
            num_falls += 1
        else:
            rate_per_s = math.sqrt(held_per_s * failed_per_s)
    return held_per_s


def find_capacity(system: System, slo: Slo, plan: SearchPlan, *, note: Callable[[], object] = lambda: None) -> Capacity:
    """Search the capacity of one system; RuntimeError if the objective holds at no rate."""
    capacity = find_capacities({"it": system}, slo, plan, note=note)["it"]
    if not capacity.per_s:
        raise RuntimeError(f"{slo} holds at no rate that was tried; give another --slo")
    return capacity


def run(system: System, rate_per_s: float, duration_s: float, seed: int) -> Run:
    """Offer load once."""
    summary = system.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
    return Run(rate_per_s=rate_per_s, seed=seed, summary=summary)


def measure_curve(
    system: System, capacity_per_s: float, *, duration_s: float, seed: int, note: Callable[[], object] = lambda: None
) -> dict[float, Run]:
    """Offer load at each of `SHARES` of the capacity, the smallest first, each with the next seed."""
    curve = {}
    for index, share in enumerate(SHARES):
        curve[share] = run(system, share * capacity_per_s, duration_s, seed + index)
        note()
    return curve


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked of a measurement of capacity alone."""
    add = parser.add_argument_group("what is measured").add_argument
    slo = f"{GRAMMAR} ({DEFAULT_SLO})".replace("%", "%%")
    add("--slo", type=parsed_by(parse_slo), default=DEFAULT_SLO, metavar="BOUNDS", help=slo)
    add("--point", type=within(0.001, 3600), metavar="S", help=f"seconds at each of {len(SHARES)} rates (20; short: 3)")
    add("--title", default="The model that ships", metavar="TEXT", help="of the picture")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return what measures a server; ValueError or OSError if there are no texts for it."""
    return partial(_measure, options, workload, workload.calls(options.seed).origin)


def _measure(options: argparse.Namespace, workload: Workload, texts: str, target: Target) -> Report:
    server = offer.Generator(target=target, workload=workload)
    with tqdm(desc=NAME, unit="run", disable=None, leave=False) as bar:
        capacity = find_capacity(server, options.slo, PLANS[options.mode], note=bar.update)
        point_s = options.point or _POINT_S[options.mode]
        curve = measure_curve(server, capacity.per_s, duration_s=point_s, seed=options.seed, note=bar.update)
    kept = {
        **circumstances(NAME),
        "title": options.title,
        "server": target.facts(),
        "workload": flags_of(workload),
        "texts": texts,
        "objective": str(options.slo),
    }
    return report_of(capacity, curve, kept, broken=unclean_end(target))


def report_of(capacity: Capacity, curve: Mapping[float, Run], kept: Mapping[str, Any], *, broken: list[str]) -> Report:
    """Return the report of a capacity and its curve; `kept` says what was measured where."""
    rows = []
    for share, at_share in curve.items():
        summary, latency = at_share.summary, at_share.summary.latency
        times = [f"{getattr(latency, f'{name}_ms'):.0f}" if latency else "" for name in _LATENCIES]
        rates = [f"{summary.offered_per_s:.1f}", f"{summary.goodput_per_s:.1f}"]
        rows.append([f"{share:.0%}", *rates, *times, f"{summary.rejected / summary.offered:.1%}"])
    at_half = curve[0.55]  # the nearest that is measured
    return Report(
        name=NAME,
        figures={
            "calls_per_s": rounded(capacity.per_s),
            "slo": kept["objective"],
            "closed_loop_per_s": rounded(capacity.closed_loop_per_s),
            "p50_ms_at_half": rounded(at_half.p50_ms),
            "p95_ms_at_half": rounded(at_half.p95_ms),
            "p50_ms": rounded(curve[1.0].p50_ms),
            "p95_ms": rounded(curve[1.0].p95_ms),
            "rates": len(curve),
            "probes": len(capacity.probes),
            "lagged": sum(run.summary.generator_lagged for run in curve.values()),
        },
        values={
            "format": 1,
            **kept,
            "capacity_per_s": capacity.per_s,
            "closed_loop_per_s": capacity.closed_loop_per_s,
            "probes": [asdict(probe) for probe in capacity.probes],
            "points": [{"share": share, "run": asdict(run)} for share, run in curve.items()],
        },
        broken=broken,
        table=markdown(("load", "calls/s", "answered/s", *(f"{name} ms" for name in _LATENCIES), "rejected"), rows),
        picture=_picture(capacity, [run.summary for run in curve.values()], kept),
    )


def _picture(capacity: Capacity, summaries: list[Summary], kept: Mapping[str, Any]) -> Figure:
    """Draw latencies on the left axis, calls answered and rejected on the right one, against the calls that come."""
    drawn, (left,) = figure(size=(8, 4.8))
    right = left.twinx()
    for name, colour in _LATENCIES.items():
        times = [(one.offered_per_s, getattr(one.latency, f"{name}_ms")) for one in summaries if one.latency]
        plot(left, times, f"latency {name}", color=colour, marker="o", markersize=4)
    left.axvline(capacity.per_s, color="black", linestyle="--", linewidth=1, label="capacity")
    left.set(xlabel=f"calls a second (capacity {capacity.per_s:.1f}: {kept['objective']})", ylabel="ms", yscale="log")
    left.set_xlim(left=0)
    left.set_title(f"{kept['title']}\n{kept['machine']['cpu']}, {kept['machine']['cores']} cores", fontsize="medium")
    answered = [(one.offered_per_s, one.goodput_per_s) for one in summaries]
    plot(right, answered, "answered", color="tab:green", linestyle="-.")
    if any(one.rejected for one in summaries):
        rejected = [(one.offered_per_s, one.rejected / one.duration_s) for one in summaries]
        plot(right, rejected, "rejected", color="tab:green", linestyle=":")
    right.set(ylim=(0, None), ylabel="calls a second")
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [str(one.get_label()) for one in lines], fontsize="small", loc="upper left")
    return drawn
