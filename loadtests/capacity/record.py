"""A capacity and its curve as one line, a table and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from loadtests.capacity.contender import Capacity
from loadtests.capacity.curve import Point
from loadtests.flags import flags_of
from loadtests.workload import Workload

FORMAT: Final = 1
RESULTS_NAME: Final = "capacity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRun:
    """Everything about one measurement."""

    title: str
    """What was served, for people."""

    workload: Workload
    objective: str
    capacity: Capacity
    points: Sequence[Point]
    machine: Mapping[str, Any]
    server: Sequence[str]
    """What it says of its version and model."""

    command: str


def line(found: CapacityRun) -> str:
    """Return `capacity name=value ...`."""
    at_capacity = min(found.points, key=lambda point: abs(point.share - 1.0)).run
    half = min(found.points, key=lambda point: abs(point.share - 0.5)).run
    fields = {
        "calls_per_s": f"{found.capacity.per_s:.1f}",
        "slo": found.objective,
        "closed_loop_per_s": f"{found.capacity.closed_loop_per_s:.1f}",
        "p50_ms_at_half": f"{half.p50_ms:.1f}",
        "p95_ms_at_half": f"{half.p95_ms:.1f}",
        "p50_ms": f"{at_capacity.p50_ms:.1f}",
        "p95_ms": f"{at_capacity.p95_ms:.1f}",
        "rates": len(found.points),
        "probes": len(found.capacity.probes),
        "lagged": sum(point.run.summary.generator_lagged for point in found.points),
    }
    return " ".join(["capacity", *(f"{name}={value}" for name, value in fields.items())])


def table(points: Sequence[Point]) -> str:
    """Return the curve as a table in Markdown."""
    rows = ["| load | calls/s | answered/s | p50 ms | p95 ms | p99 ms | refused |", "| ---: " * 7 + "|"]
    for point in points:
        summary, latency = point.run.summary, point.run.summary.latency
        times = "| | |" if latency is None else f"| {latency.p50_ms:.0f} | {latency.p95_ms:.0f} | {latency.p99_ms:.0f} "
        rows.append(
            f"| {point.share:.0%} | {summary.offered_per_s:.1f} | {point.throughput_per_s:.1f} {times}"
            f"| {summary.rejected / summary.offered:.1%} |"
        )
    return "\n".join(rows)


def as_json(found: CapacityRun) -> dict[str, Any]:
    """Return everything as JSON-ready values."""
    return {
        "format": FORMAT,
        "title": found.title,
        "command": found.command,
        "machine": dict(found.machine),
        "server": list(found.server),
        "workload": flags_of(found.workload, profile_flag="--profile"),
        "objective": found.objective,
        "capacity_per_s": found.capacity.per_s,
        "closed_loop_per_s": found.capacity.closed_loop_per_s,
        "probes": [asdict(probe) for probe in found.capacity.probes],
        "points": [asdict(point) for point in found.points],
    }
