"""The run as one page that needs nothing else: no script, no link, the pictures within."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.load.baseline import Change, row
from loadtests.load.run import Run
from loadtests.load.series import Series
from loadtests.records import MAX_GENERATOR_LAG_P99_MS, STAGES, stage_times
from loadtests.report import COLOURS
from loadtests.wire import Outcome

_WHAT_STAGES_ARE: Final = {
    "client": "all of it, from when the call should have been sent to the end of its answer",
    "queue": "the server: from admission until the encoder began",
    "encode": "the server: the encoder run",
    "decode": "the server: the search",
    "text": "the server: splitting, tokenizing, joining",
    "beyond": "what is left: network, gRPC, and waiting on either side of it",
}
_WIDTH: Final = 9.0
"""Of a picture, in inches."""
_DPI: Final = 110
"""Of the points of single calls, which would be too many to draw as lines."""


def render(run: Run, changes: Sequence[Change] = ()) -> str:
    """Return the page of a run; `changes` are from its baseline, if it has one."""
    # What a user may have written, such as a name of a model, is escaped.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page: str = environment.get_template("page.html.jinja").render(
        run=run,
        facts=_facts(run),
        stages=[
            (name, astuple(stage) if (stage := run.summary.stages[name]) else ["none"] * 5, what)
            for name, what in _WHAT_STAGES_ARE.items()
        ],
        changes=[row(change) for change in changes],
        pictures=_pictures(run),
    )
    return page


def _facts(run: Run) -> Mapping[str, Any]:
    load, machine = run.load, run.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    closed = f"closed loop of {load.num_users} users"
    return {
        "date": machine["date"],
        "generator's machine": f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['instruction_sets'])})",
        "generator's versions": f"Python {machine['python']}, {versions}",
        "server": "; ".join(run.server) or "does not say",
        "arrivals": closed if load.arrivals is None else load.arrivals.text,
        "measured": f"{load.duration_s:g} s, after {load.warm_up_s:g} s to warm up; seed {load.seed}",
        "calls": f"{run.summary.offered} offered, {run.summary.answered} answered before their deadline of "
        f"{load.workload.deadline_s:g} s",
        "objective": run.slo or "none",
    }


def _pictures(run: Run) -> dict[str, str]:
    """Return titles and pictures, each a `data:` address, in the order of the page."""

    def over_time(draw: Callable[[Axes], object], height: float = 2.4) -> str:
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot(xlabel="seconds", xlim=(0, run.load.duration_s))
        draw(axes)
        return _address(figure)

    def lines(*names: str) -> str:
        return over_time(lambda axes: _draw_lines(axes, [run.series[name] for name in names]))

    return {
        "Calls a second, by when they should have come": over_time(lambda axes: _draw_calls(axes, run)),
        "Latency of each call, from when it should have been sent": over_time(
            lambda axes: _draw_latencies(axes, run), height=3.6
        ),
        "Latency, as a histogram and accumulated, with the stages": _address(_distributions(run)),
        "Stages over time, of the calls answered": _address(_stages(run)),
        "Tokens a second": lines("source tokens", "target tokens"),
        "Queue: segments that wait": lines("queue"),
        "Batch and beam occupancy": lines("batch segments", "batch rows", "segments of a step"),
        "Processor time of the server, in cores": lines("processor"),
        "Memory of the server, in MiB": lines("memory"),
        "Lag of the generator, p99 in milliseconds": over_time(lambda axes: _draw_lag(axes, run)),
    }


def _draw_calls(axes: Axes, run: Run) -> None:
    _plot(axes, run.series["offered"], color="black")
    for kind, colour in COLOURS.items():
        if run.series[kind.value].highest:
            _plot(axes, run.series[kind.value], color=colour)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def _draw_latencies(axes: Axes, run: Run) -> None:
    for kind, colour in COLOURS.items():
        calls = [record for record in run.result.records if record.outcome is kind]
        if calls:
            times = [call.planned_s - run.result.began_s for call in calls]
            latencies = [1000 * call.latency_s for call in calls]
            axes.scatter(times, latencies, s=4, color=colour, label=kind.value, rasterized=True)
    _plot(axes, run.series["client p95"], color="black")
    if run.summary.late:
        deadline_ms = 1000 * run.load.workload.deadline_s
        axes.axhline(deadline_ms, color="black", linestyle=":", linewidth=1, label="deadline")
    axes.set(yscale="log", ylabel="ms")
    axes.legend(loc="upper right")


def _draw_lag(axes: Axes, run: Run) -> None:
    _plot(axes, run.series["generator lag p99"], color="tab:purple")
    axes.axhline(MAX_GENERATOR_LAG_P99_MS, color="black", linestyle=":", linewidth=1)
    axes.set_ylim(bottom=0)


def _draw_lines(axes: Axes, each: Sequence[Series]) -> None:
    for series in each:
        if series.points:
            _plot(axes, series)
    if any(series.points for series in each):
        axes.legend(loc="lower right")
    else:
        axes.text(0.5, 0.5, "the server does not say", transform=axes.transAxes, ha="center")
    axes.set_ylim(0, 1.1 * max(series.highest or 0.0 for series in each) or 1.0)


def _distributions(run: Run) -> Figure:
    figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
    histogram, accumulated = figure.subplots(1, 2)
    answered = [record for record in run.result.records if record.outcome is Outcome.ANSWERED]
    histogram.hist([1000 * record.latency_s for record in answered], bins=60, color=COLOURS[Outcome.ANSWERED])
    histogram.set(xlabel="ms", ylabel="calls answered")
    for stage in STAGES:
        times = [1000 * time_s for time_s in stage_times(answered, stage)]
        if times:
            accumulated.ecdf(times, label=stage)
    if answered:
        accumulated.set_xscale("log")
        accumulated.legend(loc="lower right")
    accumulated.set(xlabel="ms", ylabel="share of the calls answered")
    accumulated.grid(alpha=0.3)
    return figure


def _stages(run: Run) -> Figure:
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    for axes, stage in zip(figure.subplots(2, 3, sharex=True).flat, STAGES, strict=True):
        for name in ("p50", "p95"):
            _plot(axes, run.series[f"{stage} {name}"])
        axes.set_title(stage, fontsize=9)
        axes.set(ylim=(0, None), xlim=(0, run.load.duration_s))
    figure.legend(["p50", "p95"], loc="outside lower right", ncols=2)
    figure.supxlabel("seconds")
    figure.supylabel("ms")
    return figure


def _plot(axes: Axes, series: Series, *, color: str | None = None) -> None:
    axes.plot(
        [at_s for at_s, _ in series.points], [value for _, value in series.points], label=series.name, color=color
    )


def _address(figure: Figure) -> str:
    """Return a figure as an address that is its own content."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", dpi=_DPI)
    return f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"
