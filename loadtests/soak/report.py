"""The soak on paper: one line for people and scripts, everything as JSON, and a picture."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.machine import describe_machine
from loadtests.soak.book import Book
from loadtests.soak.observations import Observations, Sample, Settings
from loadtests.soak.verdict import Summary, judged_lows

_TITLE_WIDTH: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """A whole run."""

    settings: Settings
    found: Observations
    book: Book
    summary: Summary
    broken: Sequence[str]


def line(summary: Summary, broken: Sequence[str]) -> str:
    """Return `soak name=value ...`, the verdict last."""
    trend = summary.trend
    fields = {
        "seconds": f"{summary.seconds:.0f}",
        "calls": summary.num_calls,
        "unanswered": len(summary.unanswered),
        "twice": len(summary.twice) + len(summary.balance.twice),
        "ledger_difference": summary.balance.difference,
        "rss_slope_mb_per_h": "none" if trend is None else f"{trend.slope:.1f}",
        "rss_noise": "none" if trend is None else f"{trend.noise:.1f}",
        "threads_left": summary.threads_left,
        "fds_left": summary.fds_left,
        "tasks_left": summary.tasks_left,
        "slots_left": summary.slots_left,
        "swaps": summary.num_swaps,
        "wrong": len(summary.wrong),
        "errors": len(summary.errors),
        "verdict": "broken" if broken else "held",
    }
    return " ".join(["soak", *(f"{name}={value}" for name, value in fields.items())])


def progress_line(sample: Sample, settings: Settings) -> str:
    """Return how far it is."""
    footprint = sample.footprint
    return (
        f"{sample.at_s:.0f} of {settings.duration_s:.0f} s: calls={sample.num_calls} swaps={sample.num_swaps} "
        f"rss_mb={footprint.rss_mb:.0f} threads={footprint.num_threads} fds={footprint.num_fds}"
    )


def write(directory: Path, soak: Soak) -> None:
    """Write `soak.json` and `soak.png`, in place of older ones."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "soak.json").write_text(json.dumps(as_json(soak), indent=1) + "\n", encoding="utf-8")
    figure = _figure(soak.found.samples, soak.settings, title=line(soak.summary, soak.broken))
    FigureCanvasAgg(figure)
    figure.savefig(directory / "soak.png", dpi=120)


def as_json(soak: Soak) -> dict[str, Any]:
    """Return machine, settings, figures, verdict, and the server over time."""
    found = soak.found
    return {
        "machine": describe_machine(),
        "settings": asdict(soak.settings),
        "max_slope_mb_per_h": round(soak.settings.max_slope, 2),
        "capacity_calls_per_s": round(found.capacity_per_s, 2),
        "offered_calls_per_s": round(found.rate_per_s, 2),
        "summary": asdict(soak.summary),
        "broken_promises": list(soak.broken),
        "calls": [
            {"kind": kind, "status": status, "count": count} for (kind, status), count in sorted(soak.book.ends.items())
        ],
        "counted": [
            {"method": method, "status": status, "count": count}
            for (method, status), count in sorted(found.counted.items())
        ],
        "before": asdict(found.before),
        "after": asdict(found.after),
        "samples": [
            {
                "at_s": round(sample.at_s, 2),
                "rss_mb": round(sample.footprint.rss_mb, 2),
                "threads": sample.footprint.num_threads,
                "fds": sample.footprint.num_fds,
                "calls": sample.num_calls,
                "swaps": sample.num_swaps,
            }
            for sample in found.samples
        ],
    }


def _figure(samples: Sequence[Sample], settings: Settings, *, title: str) -> Figure:
    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_WIDTH)), fontsize="small")
    memory, counts, work = figure.subplots(3, 1, sharex=True)
    times = [sample.at_s for sample in samples]
    memory.plot(times, [sample.footprint.rss_mb for sample in samples], linewidth=0.8)
    lowest = judged_lows(samples, settings)
    memory.plot([at_s for at_s, _ in lowest], [size_mb for _, size_mb in lowest], "o-", label="low of a window")
    memory.axvspan(0, settings.warm_up_s, color="lightgrey", label="warm-up, not judged")
    memory.set(ylabel="server memory, MiB")
    memory.legend(loc="lower right")
    counts.plot(times, [sample.footprint.num_threads for sample in samples], label="threads")
    counts.plot(times, [sample.footprint.num_fds for sample in samples], label="open files")
    counts.set_ylim(bottom=0)
    counts.legend(loc="lower right")
    work.plot(times, [sample.num_calls - samples[0].num_calls for sample in samples], label="calls")
    work.set(xlabel="seconds", ylabel="calls ended")
    swaps = work.twinx()
    swaps.step(times, [sample.num_swaps for sample in samples], color="tab:red", where="post")
    swaps.set_ylabel("swaps", color="tab:red")
    return figure
