"""A capacity and its curve as one line, a table, JSON and a picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.capacity.search import Capacity, Point
from loadtests.flags import flags_of
from loadtests.report import figures_line, markdown, rounded
from loadtests.workload import Workload

FORMAT: Final = 1
_LATENCIES: Final = {"p50": "tab:blue", "p95": "tab:orange", "p99": "tab:red"}
_THROUGHPUT: Final = "tab:green"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRun:
    """Everything about one measurement."""

    title: str
    """What was served, for people."""

    workload: Workload
    texts: str
    """Where they are from."""

    objective: str
    capacity: Capacity
    points: Sequence[Point]
    machine: Mapping[str, Any]
    server: Sequence[str]
    """What it says of its version and model."""

    command: str


def line(found: CapacityRun) -> str:
    """Return `capacity name=value ...`."""
    at_capacity, half = (min(found.points, key=lambda point: abs(point.share - share)).run for share in (1.0, 0.5))
    return figures_line(
        "capacity",
        {
            "calls_per_s": rounded(found.capacity.per_s),
            "slo": found.objective,
            "closed_loop_per_s": rounded(found.capacity.closed_loop_per_s),
            "p50_ms_at_half": rounded(half.p50_ms),
            "p95_ms_at_half": rounded(half.p95_ms),
            "p50_ms": rounded(at_capacity.p50_ms),
            "p95_ms": rounded(at_capacity.p95_ms),
            "rates": len(found.points),
            "probes": len(found.capacity.probes),
            "lagged": sum(point.run.summary.generator_lagged for point in found.points),
        },
    )


def table(points: Sequence[Point]) -> str:
    """Return the curve as a table in Markdown."""
    rows = []
    for point in points:
        summary, latency = point.run.summary, point.run.summary.latency
        times = [latency.p50_ms, latency.p95_ms, latency.p99_ms] if latency else []
        rows.append([f"{point.share:.0%}", f"{summary.offered_per_s:.1f}", f"{summary.goodput_per_s:.1f}"])
        rows[-1] += [f"{time_ms:.0f}" for time_ms in times] or [""] * 3
        rows[-1].append(f"{summary.rejected / summary.offered:.1%}")
    return markdown(("load", "calls/s", "answered/s", "p50 ms", "p95 ms", "p99 ms", "rejected"), rows).rstrip()


def as_json(found: CapacityRun) -> dict[str, Any]:
    """Return everything as JSON-ready values."""
    return {
        "format": FORMAT,
        "title": found.title,
        "command": found.command,
        "machine": dict(found.machine),
        "server": list(found.server),
        "workload": flags_of(found.workload),
        "texts": found.texts,
        "objective": found.objective,
        "capacity_per_s": found.capacity.per_s,
        "closed_loop_per_s": found.capacity.closed_loop_per_s,
        "probes": [asdict(probe) for probe in found.capacity.probes],
        "points": [asdict(point) for point in found.points],
    }


def picture(found: CapacityRun) -> Figure:
    """Draw latencies on the left axis, calls answered and rejected on the right one, against the calls that come."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    summaries = [point.run.summary for point in found.points]
    rates = [summary.offered_per_s for summary in summaries]
    for name, colour in _LATENCIES.items():
        values = [getattr(summary.latency, f"{name}_ms") if summary.latency else math.nan for summary in summaries]
        left.plot(rates, values, marker="o", markersize=4, color=colour, label=f"latency {name}")
    left.axvline(found.capacity.per_s, color="black", linestyle="--", linewidth=1, label="capacity")
    left.set(xlabel=f"calls a second (capacity {found.capacity.per_s:.1f}: {found.objective})", ylabel="ms")
    left.set_xlim(left=0)
    left.set_yscale("log")
    left.set_title(f"{found.title}\n{found.machine['cpu']}, {found.machine['cores']} cores", fontsize="medium")
    right.plot(
        rates,
        [point.run.summary.goodput_per_s for point in found.points],
        color=_THROUGHPUT,
        linestyle="-.",
        label="answered",
    )
    rejected = [summary.rejected / summary.duration_s for summary in summaries]
    if any(rejected):
        right.plot(rates, rejected, color=_THROUGHPUT, linestyle=":", label="rejected")
    right.set(ylim=(0, None), ylabel="calls a second")
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [str(one.get_label()) for one in lines], fontsize="small", loc="upper left")
    return figure
