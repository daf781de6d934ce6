"""The HTML page of a load test: a single file without scripts or links, plots embedded."""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
from matplotlib.figure import Figure

from loadtests.generator.calls import Outcome
from loadtests.generator.metrics import CPU_SECONDS, RESIDENT_BYTES
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, STAGES, CallRecord, percentile, stage_times
from loadtests.generator.runner import Run
from loadtests.report.report import COLORS, Points, draw, new_figure

_WIDTH: Final = 9.0  # of a plot, in inches
_SHARES: Final = {"p50": 0.5, "p95": 0.95}
_DPI: Final = 110  # of rasterized dots
_MAX_WINDOWS: Final = 60
_SLACK_S: Final = 1.5  # samples are about one second apart


class Series(NamedTuple):
    """Values over the seconds since the start of the measured time."""

    unit: str
    points: Points

    @property
    def values(self) -> list[float]:
        """The values without their times."""
        return [value for _, value in self.points]


_TIME: Final = "seconds"
_SERVER: Final = {  # unit, metric, and the metric or time that divides its growth; None: the value itself
    "queue": ("queued segments", "dragoman_queue_segments", None),
    "batch segments": ("segments in the batches", "dragoman_batch_live_segments", None),
    "batch rows": ("beams in the batches", "dragoman_batch_live_rows", None),
    "segments of a step": ("segments, mean", "dragoman_batch_segments_sum", "dragoman_batch_segments_count"),
    "target tokens": ("tokens/s", "dragoman_target_tokens_total", _TIME),
    "source tokens": ("tokens/s", "dragoman_source_tokens_total", _TIME),
    "decoder steps": ("steps/s", "dragoman_decoder_steps_total", _TIME),
    "processor": ("cores", CPU_SECONDS, _TIME),
    "memory": ("MiB", RESIDENT_BYTES, None),
}


def series_of(run: Run) -> dict[str, Series]:
    """Return the time series of the calls and of the server's metrics; without points for a missing metric."""
    last_s = run.load.duration_s + _SLACK_S
    samples = [one for one in run.samples if one.values and -_SLACK_S <= one.at_s - run.began_s <= last_s]
    series = _call_series(run)
    for name, (unit, metric, per) in _SERVER.items():
        values = [sample.total(metric) / (2**20 if unit == "MiB" else 1) for sample in samples]
        if per is None:
            points = [(sample.at_s, value) for sample, value in zip(samples, values, strict=True)]
        else:
            bases = [sample.at_s if per == _TIME else sample.total(per) for sample in samples]
            growth = [
                (later - value) / (later_base - base) if later_base > base else math.nan
                for (value, later), (base, later_base) in zip(pairwise(values), pairwise(bases), strict=True)
            ]
            points = [(sample.at_s, value) for sample, value in zip(samples[1:], growth, strict=True)]
        known = [(at_s, value) for at_s, value in points if at_s >= run.began_s and math.isfinite(value)]
        series[name] = Series(unit, [(round(at_s - run.began_s, 3), value) for at_s, value in known])
    return series


def _call_series(run: Run) -> dict[str, Series]:
    """Return rates and latencies of the calls, in windows by scheduled time."""
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

    series = {"offered": rates(*Outcome), **{kind.value: rates(kind) for kind in Outcome}}
    series["generator lag p99"] = times(([call.lag_s for call in window] for window in windows), 0.99)
    answered = [[call for call in window if call.outcome is Outcome.ANSWERED] for window in windows]
    for stage in STAGES:
        for name, share in _SHARES.items():
            series[f"{stage} {name}"] = times((stage_times(calls, stage) for calls in answered), share)
    return series


def render(run: Run, series: Mapping[str, Series], values: Mapping[str, Any], changes: Sequence[Sequence[str]]) -> str:
    """Return the page of a run, from the values of `loadtest.json` and the rows of `compare`."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pictures = {}
    for heading, figure in _pictures(run, series).items():
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", dpi=_DPI)
        pictures[heading] = f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"
    template = environment.get_template("page.html.jinja")
    page: str = template.render(load=run.load, run=values, changes=changes, pictures=pictures)
    return page


def _pictures(run: Run, series: Mapping[str, Series]) -> dict[str, Figure]:
    """Return plots by heading, in the order of the page."""
    latencies, lag = run.latencies_ms(), {"limit": MAX_GENERATOR_LAG_P99_MS}
    seconds: dict[str, Any] = {"xlabel": "seconds", "xlim": (0, run.load.duration_s)}

    def over_time(*names: str, height: float = 2.4, **options: Any) -> Figure:
        figure, (axes,) = new_figure(size=(_WIDTH, height))
        draw(axes, {name: series[name].points for name in names}, **seconds, **options)
        return figure

    stages, panels = new_figure(2, 3, size=(_WIDTH, 4.8))
    for axes, stage in zip(panels, STAGES, strict=True):
        draw(axes, {name: series[f"{stage} {name}"].points for name in _SHARES}, title=stage, ylabel="ms", **seconds)
    return {
        "Calls per second, by scheduled time": over_time("offered", *latencies),
        "Latency of each call, from its scheduled time": over_time(
            "client p95",
            height=3.6,
            dots=latencies,
            limits={"deadline": 1000 * run.load.workload.deadline_s} if run.summary.late else {},
            yscale="log",
            ylabel="ms",
        ),
        "Latency distribution, and cumulative distribution of the stages": _distributions(run),
        "Stages of answered calls over time": stages,
        "Tokens per second": over_time("source tokens", "target tokens"),
        "Queued segments": over_time("queue"),
        "Batch and beam occupancy": over_time("batch segments", "batch rows", "segments of a step"),
        "CPU usage of the server, in cores": over_time("processor"),
        "Memory of the server, in MiB": over_time("memory"),
        "Generator lag, p99 in milliseconds": over_time("generator lag p99", limits=lag),
    }


def _distributions(run: Run) -> Figure:
    answered = [record for record in run.records if record.outcome is Outcome.ANSWERED]
    figure, (histogram, cumulative) = new_figure(1, 2, size=(_WIDTH, 3.4))
    histogram.hist([1000 * record.latency_s for record in answered], bins=60, color=COLORS[Outcome.ANSWERED.value])
    histogram.set(xlabel="ms", ylabel="answered calls")
    for stage in STAGES:
        if times := [1000 * time_s for time_s in stage_times(answered, stage)]:
            cumulative.ecdf(times, label=stage)
    if answered:
        cumulative.set_xscale("log")
        cumulative.legend(loc="lower right")
    cumulative.set(xlabel="ms", ylabel="share of answered calls")
    cumulative.grid(alpha=0.3)
    return figure
