"""The run on paper: everything as JSON, and a picture of time against size."""

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.bad_inputs.verdict import Record, Run, Summary, slowest

_LINEAR_US: Final = (1.0, 100.0)
"""Microseconds a character, drawn as lines to compare with."""


def write(directory: Path, run: Run, summary: Summary, *, settings: Mapping[str, Any], broken: Sequence[str]) -> None:
    """Write `bad_inputs.json` and `bad_inputs.png`, in place of older ones."""
    record = as_json(run, summary, settings=settings, broken=broken)
    (directory / "bad_inputs.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    figure = _figure(run.records)
    FigureCanvasAgg(figure)
    figure.savefig(directory / "bad_inputs.png", dpi=120)


def as_json(run: Run, summary: Summary, *, settings: Mapping[str, Any], broken: Sequence[str]) -> dict[str, Any]:
    """Return settings, figures, verdict, statuses by kind, all faults, the slowest inputs, memory and growth."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in run.records:
        by_kind[record.kind][record.status] += 1
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "settings": dict(settings),
        "summary": asdict(summary),
        "broken_promises": list(broken),
        "faults": [asdict(record) for record in run.records if record.faults],
        "slowest": [asdict(record) for record in slowest(run.records)],
        "statuses_by_kind": {kind: dict(statuses) for kind, statuses in sorted(by_kind.items())},
        "memory_mb": [round(size_mb, 1) for size_mb in run.memory_mb],
        "growth": [{**asdict(growth), "ratio": growth.ratio} for growth in run.growths],
    }


def _figure(records: Sequence[Record]) -> Figure:
    """Draw each input: how large it was, how long it took; slopes of 1 are work that grows as the text does."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for method in sorted({record.method for record in records}):
        chosen = [record for record in records if record.method == method]
        sizes = [max(1, record.num_characters) for record in chosen]
        axes.scatter(sizes, [1000 * record.seconds for record in chosen], s=3, label=method)
    largest = max(max(1, record.num_characters) for record in records)
    for us in _LINEAR_US:
        ends = (10, max(100, largest))
        axes.plot(ends, [us * end / 1000 for end in ends], color="grey", linestyle=":", linewidth=1)
        axes.annotate(f"{us:g} µs a character", (ends[1], us * ends[1] / 1000), ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="characters or bytes sent", ylabel="milliseconds to the end")
    axes.legend(loc="upper left")
    return figure
