"""What a load test draws over time, and the page that shows it: no script, no link, the pictures within."""

import base64
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jinja2
from matplotlib.figure import Figure

from loadtests.offer import Run
from loadtests.records import MAX_GENERATOR_LAG_P99_MS, STAGES, CallRecord, percentile, stage_times
from loadtests.report import COLOURS, figure, plot
from loadtests.sampler import CPU_SECONDS, RESIDENT_BYTES
from loadtests.wire import Outcome

_WIDTH: Final = 9.0
"""Of a picture, in inches."""
_DPI: Final = 110
"""Of the points of single calls, which would be too many to draw as lines."""
_KINDS: Final[Mapping[str, str]] = {kind.value: colour for kind, colour in COLOURS.items()}
_BYTES_PER_MB: Final = 1024 * 1024
_MAX_WINDOWS: Final = 60
_SLACK_S: Final = 1.5
"""Samples so long before and after the measured time count too, as there is one about every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over the seconds since the measured time began."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]

    @property
    def highest(self) -> float | None:
        """Of the values; None if there are none."""
        return max((value for _, value in self.points), default=None)

    @property
    def mean(self) -> float | None:
        """Of the values, which are about equally far apart; None if there are none."""
        return sum(value for _, value in self.points) / len(self.points) if self.points else None


class _Metric(NamedTuple):
    """A metric of the server, as it stands or as it grows."""

    unit: str
    name: str
    per: str | None = None
    """Counter by whose growth that of the metric is divided, or `_TIME`; None: it is shown as it stands."""


_TIME: Final = "seconds"
_SERVER: Final = {
    "queue": _Metric("segments that wait", "mt_queue_segments"),
    "batch segments": _Metric("segments in the batches", "mt_batch_live_segments"),
    "batch rows": _Metric("beams in the batches", "mt_batch_live_rows"),
    "segments of a step": _Metric("segments, mean", "mt_batch_segments_sum", per="mt_batch_segments_count"),
    "target tokens": _Metric("tokens/s", "mt_target_tokens_total", per=_TIME),
    "source tokens": _Metric("tokens/s", "mt_source_tokens_total", per=_TIME),
    "decoder steps": _Metric("steps/s", "mt_decoder_steps_total", per=_TIME),
    "processor": _Metric("cores", CPU_SECONDS, per=_TIME),
    "memory": _Metric("MiB", RESIDENT_BYTES),
}


def series_of(run: Run) -> dict[str, Series]:
    """Return everything that can be drawn over time, by name: what the server says of itself, and its calls."""
    found = {name: (metric.unit, _server_points(run, metric)) for name, metric in _SERVER.items()}
    found |= _call_points(run)
    return {
        name: Series(name=name, unit=unit, points=tuple(point for point in points if math.isfinite(point[1])))
        for name, (unit, points) in found.items()
    }


def _server_points(run: Run, metric: _Metric) -> list[tuple[float, float]]:
    """Return a metric in the measured time; nothing where the server lacks it."""
    last_s = run.load.duration_s + _SLACK_S
    samples = [one for one in run.samples if one.values and -_SLACK_S <= one.at_s - run.began_s <= last_s]
    scale = 1 / _BYTES_PER_MB if metric.name == RESIDENT_BYTES else 1.0
    points = [(sample.at_s, scale * sample.total(metric.name)) for sample in samples]
    if metric.per is not None:
        bases = [sample.at_s if metric.per == _TIME else sample.total(metric.per) for sample in samples]
        grown = zip(itertools.pairwise(points), itertools.pairwise(bases), strict=True)
        points = [
            (at_s, (value - before) / (base - base_before) if base > base_before else math.nan)
            for ((_, before), (at_s, value)), (base_before, base) in grown
        ]
    return [(round(at_s - run.began_s, 3), value) for at_s, value in points if at_s >= run.began_s]


def _call_points(run: Run) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Return units and points of calls by the second and how long they took, by when they should have come."""
    duration_s = run.load.duration_s
    window_s = max(1.0, duration_s / _MAX_WINDOWS)
    windows: list[list[CallRecord]] = [[] for _ in range(math.ceil(duration_s / window_s))]
    for record in run.records:
        windows[min(len(windows) - 1, int((record.planned_s - run.began_s) / window_s))].append(record)
    lengths = [min(window_s, duration_s - index * window_s) for index in range(len(windows))]
    middles = [index * window_s + length_s / 2 for index, length_s in enumerate(lengths)]

    def rates(kinds: Sequence[Outcome]) -> tuple[str, list[tuple[float, float]]]:
        counts = [sum(call.outcome in kinds for call in window) for window in windows]
        parts = zip(middles, counts, lengths, strict=True)
        return "calls/s", [(at_s, count / length_s) for at_s, count, length_s in parts]

    def times(of: Callable[[list[CallRecord]], list[float]], share: float) -> tuple[str, list[tuple[float, float]]]:
        each = zip(middles, map(of, windows), strict=True)
        return "ms", [(at_s, 1000 * percentile(found_s, share)) for at_s, found_s in each if found_s]

    def stage(name: str, calls: list[CallRecord]) -> list[float]:
        return stage_times([call for call in calls if call.outcome is Outcome.ANSWERED], name)

    return {
        "offered": rates(list(Outcome)),
        **{kind.value: rates([kind]) for kind in Outcome},
        **{
            f"{name} {label}": times(partial(stage, name), share)
            for name in STAGES
            for label, share in (("p50", 0.5), ("p95", 0.95))
        },
        "generator lag p99": times(lambda calls: [call.lag_s for call in calls], 0.99),
    }


def render(run: Run, series: Mapping[str, Series], values: Mapping[str, Any], changes: Sequence[Sequence[str]]) -> str:
    """Return the page of a run with the values of `loadtest.json` and the rows of `loadtests.baseline.compare`."""
    # What a user may have written, such as a name of a model, is escaped.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page: str = environment.get_template("page.html.jinja").render(
        load=run.load,
        run=values,
        changes=changes,
        pictures={heading: _address(drawn) for heading, drawn in _pictures(run, series).items()},
    )
    return page


def _address(drawn: Figure) -> str:
    """Return a figure as an address that is its own content."""
    stream = io.BytesIO()
    drawn.savefig(stream, format="svg", dpi=_DPI)
    return f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _pictures(run: Run, series: Mapping[str, Series]) -> dict[str, Figure]:
    """Return titles and pictures in the order of the page."""
    calls: dict[str, list[CallRecord]] = {kind: [] for kind in _KINDS}
    for call in run.records:
        calls[call.outcome.value].append(call)
    dots = {
        kind: [(call.planned_s - run.began_s, 1000 * call.latency_s) for call in of_kind]
        for kind, of_kind in calls.items()
        if of_kind
    }

    def over_time(*names: str, **options: Any) -> Figure:
        return _over_time([series[name] for name in names], run.load.duration_s, **options)

    return {
        "Calls a second, by when they should have come": over_time("offered", *dots, color="black"),
        "Latency of each call, from when it should have been sent": over_time(
            "client p95",
            dots=dots,
            limit=1000 * run.load.workload.deadline_s if run.summary.late else None,
            height=3.6,
            color="black",
            yscale="log",
            ylabel="ms",
        ),
        "Latency, as a histogram and accumulated, with the stages": _distributions(calls[Outcome.ANSWERED.value]),
        "Stages over time, of the calls answered": _stages(series, run.load.duration_s),
        "Tokens a second": over_time("source tokens", "target tokens"),
        "Queue: segments that wait": over_time("queue"),
        "Batch and beam occupancy": over_time("batch segments", "batch rows", "segments of a step"),
        "Processor time of the server, in cores": over_time("processor"),
        "Memory of the server, in MiB": over_time("memory"),
        "Lag of the generator, p99 in milliseconds": over_time("generator lag p99", limit=MAX_GENERATOR_LAG_P99_MS),
    }


def _over_time(
    lines: Sequence[Series],
    duration_s: float,
    *,
    dots: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
    limit: float | None = None,
    height: float = 2.4,
    color: str | None = None,
    **settings: Any,
) -> Figure:
    """Draw lines above dots; those of what became of calls have its colour, others the given one."""
    drawn, (axes,) = figure(size=(_WIDTH, height))
    for kind, points in dots.items():
        plot(axes, points, kind, color=_KINDS[kind], marker=".", markersize=3, linestyle="", rasterized=True)
    for one in lines:
        if one.points:
            plot(axes, one.points, one.name, color=_KINDS.get(one.name, color))
    if limit is not None:
        axes.axhline(limit, color="black", linestyle=":", linewidth=1, label="limit")
    if axes.lines:
        axes.legend(loc="upper right")
    else:
        axes.text(0.5, 0.5, "the server does not say", transform=axes.transAxes, ha="center")
    axes.set(xlabel="seconds", xlim=(0, duration_s), **settings)
    if "yscale" not in settings:
        axes.set_ylim(bottom=0)
    return drawn


def _distributions(answered: Sequence[CallRecord]) -> Figure:
    drawn, (histogram, accumulated) = figure(1, 2, size=(_WIDTH, 3.4))
    histogram.hist([1000 * record.latency_s for record in answered], bins=60, color=COLOURS[Outcome.ANSWERED])
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


def _stages(series: Mapping[str, Series], duration_s: float) -> Figure:
    drawn, panels = figure(2, 3, size=(_WIDTH, 4.8), sharex=True)
    for axes, stage in zip(panels, STAGES, strict=True):
        for name in ("p50", "p95"):
            plot(axes, series[f"{stage} {name}"].points, name)
        axes.set_title(stage, fontsize=9)
        axes.set(ylim=(0, None), xlim=(0, duration_s))
    drawn.legend(["p50", "p95"], loc="outside lower right", ncols=2)
    drawn.supxlabel("seconds")
    drawn.supylabel("ms")
    return drawn
