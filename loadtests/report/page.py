"""What a load test draws over time, and the page that shows it: no script, no link, the pictures within."""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
from matplotlib.figure import Figure

from loadtests.generator.runner import Run
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, STAGES, CallRecord, percentile, stage_times
from loadtests.report.report import COLOURS, Points, draw, figure
from loadtests.generator.metrics import CPU_SECONDS, RESIDENT_BYTES
from loadtests.generator.calls import Outcome

_WIDTH: Final = 9.0  # of a picture, in inches
_SHARES: Final = {"p50": 0.5, "p95": 0.95}
_DPI: Final = 110  # of the points of single calls, which would be too many to draw as lines
_MAX_WINDOWS: Final = 60
_SLACK_S: Final = 1.5
"""Samples so long before and after the measured time count too, as there is one about every second."""


class Series(NamedTuple):
    """Values over the seconds since the measured time began."""

    unit: str
    points: Points

    @property
    def values(self) -> list[float]:
        """Of the points, which are about equally far apart."""
        return [value for _, value in self.points]


_TIME: Final = "seconds"
_SERVER: Final = {
    "queue": ("segments that wait", "mt_queue_segments", None),
    "batch segments": ("segments in the batches", "mt_batch_live_segments", None),
    "batch rows": ("beams in the batches", "mt_batch_live_rows", None),
    "segments of a step": ("segments, mean", "mt_batch_segments_sum", "mt_batch_segments_count"),
    "target tokens": ("tokens/s", "mt_target_tokens_total", _TIME),
    "source tokens": ("tokens/s", "mt_source_tokens_total", _TIME),
    "decoder steps": ("steps/s", "mt_decoder_steps_total", _TIME),
    "processor": ("cores", CPU_SECONDS, _TIME),
    "memory": ("MiB", RESIDENT_BYTES, None),
}
"""Units and metrics, and by whose growth that of a counter is divided; None: the metric is shown as it stands."""


def series_of(run: Run) -> dict[str, Series]:
    """Return everything that can be drawn over time, by name: what the server says of itself, and its calls.

    Series of metrics that the server lacks have no points.
    """
    last_s = run.load.duration_s + _SLACK_S
    samples = [one for one in run.samples if one.values and -_SLACK_S <= one.at_s - run.began_s <= last_s]
    found = _call_series(run)
    for name, (unit, metric, per) in _SERVER.items():
        values = [sample.total(metric) / (2**20 if unit == "MiB" else 1) for sample in samples]
        if per is None:
            points = [(sample.at_s, value) for sample, value in zip(samples, values, strict=True)]
        else:
            bases = [sample.at_s if per == _TIME else sample.total(per) for sample in samples]
            growth = [
                (later - value) / (base - before) if base > before else math.nan
                for (value, later), (before, base) in zip(pairwise(values), pairwise(bases), strict=True)
            ]
            points = [(sample.at_s, value) for sample, value in zip(samples[1:], growth, strict=True)]
        known = [(at_s, value) for at_s, value in points if at_s >= run.began_s and math.isfinite(value)]
        found[name] = Series(unit, [(round(at_s - run.began_s, 3), value) for at_s, value in known])
    return found


def _call_series(run: Run) -> dict[str, Series]:
    """Return calls by the second and how long they took, in windows by when they should have come."""
    duration_s = run.load.duration_s
    window_s = max(1.0, duration_s / _MAX_WINDOWS)
    windows: list[list[CallRecord]] = [[] for _ in range(math.ceil(duration_s / window_s))]
    for record in run.records:
        windows[min(len(windows) - 1, int((record.planned_s - run.began_s) / window_s))].append(record)
    lengths = [min(window_s, duration_s - index * window_s) for index in range(len(windows))]
    middles = [index * window_s + length_s / 2 for index, length_s in enumerate(lengths)]

    def rates(*kinds: Outcome) -> Series:
        counts = [sum(call.outcome in kinds for call in window) for window in windows]
        parts = zip(middles, counts, lengths, strict=True)
        return Series("calls/s", [(at_s, count / length_s) for at_s, count, length_s in parts])

    def times(each: Iterable[list[float]], share: float) -> Series:
        known = [(at_s, times_s) for at_s, times_s in zip(middles, each, strict=True) if times_s]
        return Series("ms", [(at_s, 1000 * percentile(times_s, share)) for at_s, times_s in known])

    found = {"offered": rates(*Outcome), **{kind.value: rates(kind) for kind in Outcome}}
    found["generator lag p99"] = times(([call.lag_s for call in window] for window in windows), 0.99)
    answered = [[call for call in window if call.outcome is Outcome.ANSWERED] for window in windows]
    for stage in STAGES:
        for name, share in _SHARES.items():
            found[f"{stage} {name}"] = times((stage_times(calls, stage) for calls in answered), share)
    return found


def render(run: Run, series: Mapping[str, Series], values: Mapping[str, Any], changes: Sequence[Sequence[str]]) -> str:
    """Return the page of a run with the values of `loadtest.json` and the rows of `loadtests.load.compare`."""
    # What a user may have written, such as a name of a model, is escaped.
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    addresses = {}  # of pictures: their own content
    for heading, drawn in _pictures(run, series).items():
        stream = io.BytesIO()
        drawn.savefig(stream, format="svg", dpi=_DPI)
        addresses[heading] = f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"
    template = environment.get_template("page.html.jinja")
    page: str = template.render(load=run.load, run=values, changes=changes, pictures=addresses)
    return page


def _pictures(run: Run, series: Mapping[str, Series]) -> dict[str, Figure]:
    """Return titles and pictures in the order of the page."""
    latencies, lag = run.latencies_ms(), {"limit": MAX_GENERATOR_LAG_P99_MS}
    seconds: dict[str, Any] = {"xlabel": "seconds", "xlim": (0, run.load.duration_s)}

    def over_time(*names: str, height: float = 2.4, **options: Any) -> Figure:
        drawn, (axes,) = figure(size=(_WIDTH, height))
        draw(axes, {name: series[name].points for name in names}, **seconds, **options)
        return drawn

    stages, panels = figure(2, 3, size=(_WIDTH, 4.8))
    for axes, stage in zip(panels, STAGES, strict=True):
        draw(axes, {name: series[f"{stage} {name}"].points for name in _SHARES}, title=stage, ylabel="ms", **seconds)
    return {
        "Calls a second, by when they should have come": over_time("offered", *latencies),
        "Latency of each call, from when it should have been sent": over_time(
            "client p95",
            height=3.6,
            dots=latencies,
            limits={"deadline": 1000 * run.load.workload.deadline_s} if run.summary.late else {},
            yscale="log",
            ylabel="ms",
        ),
        "Latency, as a histogram and accumulated, with the stages": _distributions(run),
        "Stages over time, of the calls answered": stages,
        "Tokens a second": over_time("source tokens", "target tokens"),
        "Queue: segments that wait": over_time("queue"),
        "Batch and beam occupancy": over_time("batch segments", "batch rows", "segments of a step"),
        "Processor time of the server, in cores": over_time("processor"),
        "Memory of the server, in MiB": over_time("memory"),
        "Lag of the generator, p99 in milliseconds": over_time("generator lag p99", limits=lag),
    }


def _distributions(run: Run) -> Figure:
    answered = [record for record in run.records if record.outcome is Outcome.ANSWERED]
    drawn, (histogram, accumulated) = figure(1, 2, size=(_WIDTH, 3.4))
    histogram.hist([1000 * record.latency_s for record in answered], bins=60, color=COLOURS[Outcome.ANSWERED.value])
    histogram.set(xlabel="ms", ylabel="calls answered")
    for stage in STAGES:
        if times := [1000 * time_s for time_s in stage_times(answered, stage)]:
            accumulated.ecdf(times, label=stage)
    if answered:
        accumulated.set_xscale("log")
        accumulated.legend(loc="lower right")
    accumulated.set(xlabel="ms", ylabel="share of the calls answered")
    accumulated.grid(alpha=0.3)
    return drawn
