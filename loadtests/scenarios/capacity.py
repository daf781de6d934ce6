"""`capacity`: the highest rate at which an objective holds, and latency by load."""

import argparse
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from matplotlib.figure import Figure
from tqdm import tqdm

from loadtests.generator import runner
from loadtests.generator.flags import flags_of, parsed_by, within
from loadtests.generator.records import Summary
from loadtests.generator.server import Target
from loadtests.generator.slo import GRAMMAR, Slo, parse_slo
from loadtests.generator.workload import Workload
from loadtests.report.report import Report, environment, markdown, new_figure, rounded

NAME: Final = "capacity"
DESCRIPTION: Final = """\
Finds the capacity of a server: the highest rate of calls at which an objective holds. It depends on the workload, the
objective and the machine, and is reported together with them. Then offers shares of it, from 10 % to 120 % (--mode
short: 55, 100 and 120 %), and plots latency and throughput by load. Without --target it starts a server on free local
ports with the bundled models.

The search starts at the throughput of a closed loop. The rate is raised until the objective fails; then the interval
is bisected to a resolution of 5 %. A rate counts as too high if the objective fails there twice (--mode short: 20 %,
and once).

Calls are Poisson arrivals; latency counts from the scheduled time.

OUTPUT contains capacity.json and capacity.png.

exit codes: 0 measured; 1 the objective held at no rate, or the server failed; 2 invalid usage"""

DEFAULT_SLO: Final = "p95<1s,goodput>99%"
SHARES: Final = {  # of the capacity, for the curve
    "full": (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2),
    "short": (0.55, 1.0, 1.2),
}
_POINT_S: Final = {"full": 20.0, "short": 3.0}  # seconds at each rate of the curve
_SAFE_START: Final = 0.8  # of the closed-loop throughput
_MAX_FALLS: Final = 12  # of the rate, before the search gives up
_LATENCIES: Final = {"p50": "tab:blue", "p95": "tab:orange", "p99": "tab:red"}

Name = TypeVar("Name", bound=str)


class System(Protocol):
    """A server that load can be offered to."""

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Offer Poisson arrivals; return the figures."""

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Return the calls per second of a closed loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A system at one rate."""

    rate_per_s: float
    seed: int
    summary: Summary
    broken: tuple[str, ...] = ()  # how it violated the objective of a search

    @property
    def p50_ms(self) -> float:
        """Latency; infinite if no call was accepted."""
        return self.summary.latency.p50_ms if self.summary.latency else math.inf

    @property
    def p95_ms(self) -> float:
        """Latency; infinite if no call was accepted."""
        return self.summary.latency.p95_ms if self.summary.latency else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate at which the objective holds; 0 if it held at no rate."""

    per_s: float
    closed_loop_per_s: float
    probes: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Thoroughness of a search."""

    closed_loop_s: float
    probe_s: float
    tries: int = 1  # failures at a rate before it counts as too high; one can be noise
    resolution: float = 0.05  # share by which the capacity may be underestimated
    seed: int = 1


PLANS: Final[Mapping[str, SearchPlan]] = {
    "full": SearchPlan(closed_loop_s=10.0, probe_s=15.0, tries=2),
    "short": SearchPlan(closed_loop_s=3.0, probe_s=3.0, resolution=0.2),
}


def find_capacities(
    systems: Mapping[Name, System], slo: Slo, plan: SearchPlan, *, on_probe: Callable[[], object] = lambda: None
) -> dict[Name, Capacity]:
    """Search the capacity of each system, with alternating probes; `on_probe` is called after each."""
    throughputs = {name: system.throughput_per_s(duration_s=plan.closed_loop_s) for name, system in systems.items()}
    searches = {
        name: search_rates(_SAFE_START * per_s, resolution=plan.resolution, tries=plan.tries)
        for name, per_s in throughputs.items()
    }
    rates = {name: next(search) for name, search in searches.items()}
    probes: dict[Name, list[Run]] = {name: [] for name in systems}
    found: dict[Name, float] = {}
    while rates:
        for name, rate_per_s in list(rates.items()):
            probed = run(systems[name], rate_per_s, plan.probe_s, plan.seed + len(probes[name]))
            broken = tuple(slo.violations(probed.summary.figures))
            probes[name].append(replace(probed, broken=broken))
            on_probe()
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
    """Yield rates to probe, receive whether the objective held, and return the highest rate at which it did.

    The rate is multiplied or divided by the factor until one holds and a higher one fails in all tries; then the
    interval is bisected until the failed rate exceeds the held one by at most `resolution`. Returns 0 if none holds.
    Raises ValueError for parameters without an end.
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


def find_capacity(
    system: System, slo: Slo, plan: SearchPlan, *, on_probe: Callable[[], object] = lambda: None
) -> Capacity:
    """Search the capacity of one system; raises RuntimeError if the objective holds at no rate."""
    capacity = find_capacities({"server": system}, slo, plan, on_probe=on_probe)["server"]
    if not capacity.per_s:
        raise RuntimeError(f"{slo} holds at no rate; choose another --slo")
    return capacity


def run(system: System, rate_per_s: float, duration_s: float, seed: int) -> Run:
    """Offer load once."""
    summary = system.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
    return Run(rate_per_s=rate_per_s, seed=seed, summary=summary)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `capacity`."""
    add = parser.add_argument_group("measurement").add_argument
    slo = f"{GRAMMAR} ({DEFAULT_SLO})".replace("%", "%%")
    add("--slo", type=parsed_by(parse_slo), default=DEFAULT_SLO, metavar="BOUNDS", help=slo)
    add("--point", type=within(0.001, 3600), metavar="S", help="seconds at each rate of the curve (20; short: 3)")
    add("--title", default="The bundled model", metavar="TEXT", help="title of the plot")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return the measurement; raises ValueError or OSError without texts."""
    return partial(_measure, options, workload, workload.calls(options.seed).origin)


def _measure(options: argparse.Namespace, workload: Workload, texts: str, target: Target) -> Report:
    server = runner.Generator(target=target, workload=workload)
    point_s = options.point or _POINT_S[options.mode]
    curve = dict[float, Run]()
    with tqdm(desc=NAME, unit="run", disable=None, leave=False) as bar:
        capacity = find_capacity(server, options.slo, PLANS[options.mode], on_probe=bar.update)
        for index, share in enumerate(SHARES[options.mode]):
            curve[share] = run(server, share * capacity.per_s, point_s, options.seed + index)
            bar.update()
    settings = {
        **environment(NAME),
        "title": options.title,
        "server": target.info(),
        "workload": flags_of(workload),
        "texts": texts,
        "objective": str(options.slo),
    }
    return report_of(capacity, curve, settings, violations=target.stop())


def report_of(
    capacity: Capacity, curve: Mapping[float, Run], settings: Mapping[str, Any], *, violations: list[str]
) -> Report:
    """Return the report of a capacity and its curve."""
    rows = []
    for share, at_share in curve.items():
        summary, latency = at_share.summary, at_share.summary.latency
        times = [f"{getattr(latency, f'{name}_ms'):.0f}" if latency else "" for name in _LATENCIES]
        rates = [f"{summary.offered_per_s:.1f}", f"{summary.goodput_per_s:.1f}"]
        rows.append([f"{share:.0%}", *rates, *times, f"{summary.rejected / summary.offered:.1%}"])
    at_half = curve[0.55]  # the nearest share
    return Report(
        name=NAME,
        figures={
            "calls_per_s": rounded(capacity.per_s),
            "slo": settings["objective"],
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
            "format": 2,
            **settings,
            "capacity_per_s": capacity.per_s,
            "closed_loop_per_s": capacity.closed_loop_per_s,
            "probes": [asdict(probe) for probe in capacity.probes],
            "points": [{"share": share, "run": asdict(run)} for share, run in curve.items()],
        },
        violations=violations,
        table=markdown(("load", "calls/s", "answered/s", *(f"{name} ms" for name in _LATENCIES), "rejected"), rows),
        picture=partial(_picture, capacity, [run.summary for run in curve.values()], settings),
    )


def _picture(capacity: Capacity, summaries: list[Summary], settings: Mapping[str, Any]) -> Figure:
    """Plot latencies (left axis), answered and rejected calls (right axis) by offered calls."""
    figure, (left,) = new_figure(size=(8, 4.8))
    right = left.twinx()
    for name, colour in _LATENCIES.items():
        times = [(one.offered_per_s, getattr(one.latency, f"{name}_ms")) for one in summaries if one.latency]
        left.plot(*zip(*times, strict=True), label=f"latency {name}", color=colour, marker="o", markersize=4)
    left.axvline(capacity.per_s, color="black", linestyle="--", linewidth=1, label="capacity")
    xlabel = f"calls per second (capacity {capacity.per_s:.1f}: {settings['objective']})"
    left.set(xlabel=xlabel, ylabel="ms", yscale="log")
    left.set_xlim(left=0)
    machine = settings["machine"]
    left.set_title(f"{settings['title']}\n{machine['cpu']}, {machine['cores']} cores", fontsize="medium")
    answered = [(one.offered_per_s, one.goodput_per_s) for one in summaries]
    right.plot(*zip(*answered, strict=True), label="answered", color="tab:green", linestyle="-.")
    if any(one.rejected for one in summaries):
        rejected = [(one.offered_per_s, one.rejected / one.duration_s) for one in summaries]
        right.plot(*zip(*rejected, strict=True), label="rejected", color="tab:green", linestyle=":")
    right.set(ylim=(0, None), ylabel="calls per second")
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [str(one.get_label()) for one in lines], fontsize="small", loc="upper left")
    return figure
