"""Metrics of the server during a Locust test: time series, CSV, and a section of the HTML report."""

import base64
import csv
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from loadtests.generator.metrics import CPU_SECONDS, RESIDENT_BYTES, Sample
from loadtests.report.report import Points, draw, new_figure

_TIME: Final = "seconds"
_REJECTIONS: Final = "dragoman_rejected_requests_total"  # absent until the first rejection
_SERIES: Final = {  # metric, and what divides its growth; None: the value itself
    "queued segments": ("dragoman_queue_segments", None),
    "segments of a batch step": ("dragoman_batch_segments_sum", "dragoman_batch_segments_count"),
    "rejections/s": (_REJECTIONS, _TIME),
    "target tokens/s": ("dragoman_target_tokens_total", _TIME),
    "CPU cores": (CPU_SECONDS, _TIME),
    "memory MiB": (RESIDENT_BYTES, None),
}
_BYTES_PER_MIB: Final = 2**20


def series_of(samples: Sequence[Sample]) -> dict[str, Points]:
    """Return time series by name over the seconds since the first sample; without points for a missing metric."""
    known = [sample for sample in samples if sample.values]
    series = dict[str, Points]()
    for name, (metric, per) in _SERIES.items():
        unit = _BYTES_PER_MIB if metric == RESIDENT_BYTES else 1
        values = [sample.total(metric) / unit for sample in known]
        if metric == _REJECTIONS:
            values = [0.0 if math.isnan(value) else value for value in values]
        if per is not None:
            bases = [sample.at_s if per == _TIME else sample.total(per) for sample in known]
            values = [
                (later - value) / (later_base - base) if later_base > base else math.nan
                for (value, later), (base, later_base) in zip(pairwise(values), pairwise(bases), strict=True)
            ]
        times = [sample.at_s - samples[0].at_s for sample in known[len(known) - len(values) :]]
        series[name] = [(at_s, value) for at_s, value in zip(times, values, strict=True) if math.isfinite(value)]
    return series


def write_csv(path: Path, series: Mapping[str, Points]) -> None:
    """Write one row for each time, with a column for each series."""
    times = sorted({at_s for points in series.values() for at_s, _ in points})
    values = {name: dict(points) for name, points in series.items()}
    with path.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow([_TIME, *series])
        rows.writerows([f"{at_s:.3f}", *(values[name].get(at_s, "") for name in series)] for at_s in times)


def report_section(figures: Mapping[str, str], failures: Iterable[str], series: Mapping[str, Points]) -> str:
    """Return HTML with failures, figures and a plot of each series that has points."""
    plotted = {name: points for name, points in series.items() if points}
    picture = ""
    if plotted:
        figure, panels = new_figure(math.ceil(len(plotted) / 2), 2, size=(11, 2.4 * math.ceil(len(plotted) / 2)))
        for axes, (name, points) in zip(panels, plotted.items(), strict=False):
            draw(axes, {name: points}, xlabel=_TIME)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg")
        picture = (
            f'<img style="width:100%" src="data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}">'
        )
    sentences = "".join(f"<li>{html.escape(failure)}</li>" for failure in failures)
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in figures.items()
    )
    style = (
        "font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:1rem;background:#fff;color:#222"
    )
    verdict = f"<p>Failed:</p><ul>{sentences}</ul>" if sentences else "<p>All thresholds hold.</p>"
    return f'<section style="{style}"><h2>Dragoman</h2>{verdict}<table>{rows}</table>{picture}</section>'
