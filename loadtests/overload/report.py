"""The storm on paper: one line for people and scripts, everything as JSON, and a picture."""

import datetime as dt
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.overload.verdict import Summary
from loadtests.records import CallRecord
from loadtests.wire import Outcome

_COLOURS = {
    Outcome.ANSWERED: "tab:green",
    Outcome.REJECTED: "tab:blue",
    Outcome.LATE: "tab:orange",
    Outcome.ERROR: "tab:red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Everything that was measured; times in seconds from its start."""

    began_s: float
    """On the generator's clock."""

    summary: Summary
    records: Sequence[CallRecord]
    memory_mb: Sequence[tuple[float, float]]
    """Resident memory of the server over time."""

    settings: Mapping[str, Any]
    broken: Sequence[str]


def line(summary: Summary) -> str:
    """Return `overload name=value ...`, the promises first."""
    fields = {
        "rejected_p99_ms": _rounded(summary.rejected_p99_ms),
        "accepted_late": summary.accepted_late,
        "errors_other": summary.errors,
        "rss_growth_mb": _rounded(summary.rss_growth_mb),
        "offered": summary.offered,
        "accepted": summary.accepted,
        "rejected": summary.rejected,
        "capacity_per_s": _rounded(summary.capacity_per_s),
        "offered_per_s": _rounded(summary.offered_per_s),
        "goodput": f"{summary.goodput:.2f}",
        "rejected_p50_ms": _rounded(summary.rejected_p50_ms),
        "rejected_p99_from_send_ms": _rounded(summary.rejected_p99_from_send_ms),
        "accepted_p99_ms": _rounded(summary.accepted_p99_ms),
        "generator_lag_p99_ms": _rounded(summary.generator_lag_p99_ms),
    }
    return " ".join(["overload", *(f"{name}={value}" for name, value in fields.items())])


def write(directory: Path, storm: Storm) -> None:
    """Write `overload.json` and `overload.png`, in place of older ones."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "overload.json").write_text(json.dumps(as_json(storm), indent=1) + "\n", encoding="utf-8")
    figure = _figure(storm)
    FigureCanvasAgg(figure)
    figure.savefig(directory / "overload.png", dpi=120)


def as_json(storm: Storm) -> dict[str, Any]:
    """Return settings, figures, verdict, memory, and every call as [planned, lag, latency, status]."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "settings": dict(storm.settings),
        "summary": asdict(storm.summary),
        "broken_promises": list(storm.broken),
        "memory_mb": [[round(at_s, 3), round(size_mb, 1)] for at_s, size_mb in storm.memory_mb],
        "calls": [
            [
                round(record.planned_s - storm.began_s, 5),
                round(record.lag_s, 5),
                round(record.latency_s, 5),
                record.status,
            ]
            for record in sorted(storm.records, key=lambda record: record.planned_s)
        ],
    }


def _figure(storm: Storm) -> Figure:
    figure = Figure(figsize=(9, 8), layout="constrained")
    rates, latencies, memory = figure.subplots(3, 1, sharex=True)
    _draw_rates(rates, storm)
    _draw_latencies(latencies, storm)
    memory.plot(*zip(*storm.memory_mb, strict=True))
    memory.set(xlabel="seconds", ylabel="server memory, MiB")
    memory.set_ylim(bottom=0)
    return figure


def _draw_rates(axes: Axes, storm: Storm) -> None:
    """Draw calls offered, and what they came to, by the second in which they came or ended."""
    offered = Counter(int(record.planned_s - storm.began_s) for record in storm.records)
    seconds = range(max(offered) + 1)
    axes.plot(seconds, [offered[second] for second in seconds], color="black", label="offered")
    for kind, colour in _COLOURS.items():
        ended = Counter(int(record.ended_s - storm.began_s) for record in storm.records if record.outcome is kind)
        if ended:
            axes.plot(seconds, [ended[second] for second in seconds], color=colour, label=kind.value)
    axes.axhline(storm.summary.capacity_per_s, color="grey", linestyle=":", label="capacity")
    axes.set_ylabel("calls a second")
    axes.legend(loc="upper right")


def _draw_latencies(axes: Axes, storm: Storm) -> None:
    """Draw each call: when it came, how long until its end."""
    for kind, colour in _COLOURS.items():
        records = [record for record in storm.records if record.outcome is kind]
        times = [record.planned_s - storm.began_s for record in records]
        axes.scatter(times, [1000 * record.latency_s for record in records], s=3, color=colour, label=kind.value)
    axes.axhline(1000 * storm.settings["deadline_s"], color="black", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds to the end")


def _rounded(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"
