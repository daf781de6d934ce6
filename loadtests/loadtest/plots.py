"""The run as pictures, each a `data:` address, so that a page can hold them."""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from loadtests.loadtest.run import Run
from loadtests.loadtest.series import Series
from loadtests.records import MAX_GENERATOR_LAG_P99_MS, STAGES, stage_times
from loadtests.wire import Outcome

COLOURS: Final = {
    Outcome.ANSWERED: "tab:green",
    Outcome.REJECTED: "tab:blue",
    Outcome.LATE: "tab:orange",
    Outcome.LEFT: "tab:grey",
    Outcome.ERROR: "tab:red",
}
_WIDTH: Final = 9.0
"""Of a picture, in inches."""
_DPI: Final = 110
"""Of the points of single calls, which would be too many to draw as lines."""

Draw = Callable[[Axes, Run], None]


def pictures(run: Run) -> dict[str, str]:
    """Return titles and pictures, in the order of a page."""
    return {
        "Calls a second, by when they should have come": _picture(run, _draw_calls),
        "Latency of each call, from when it should have been sent": _picture(run, _draw_latencies, height=3.6),
        "Latency, as a histogram and accumulated, with the stages": _distributions(run),
        "Stages over time, of the calls answered": _stages(run),
        "Tokens a second": _picture(run, _lines("source tokens", "target tokens")),
        "Queue: segments that wait": _picture(run, _lines("queue")),
        "Batch and beam occupancy": _picture(run, _lines("batch segments", "batch rows", "segments of a step")),
        "Processor time of the server, in cores": _picture(run, _lines("processor")),
        "Memory of the server, in MiB": _picture(run, _lines("memory")),
        "Lag of the generator, p99 in milliseconds": _picture(run, _draw_lag),
    }


def _picture(run: Run, draw: Draw, *, height: float = 2.4) -> str:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, run)
    axes.set_xlabel("seconds")
    axes.set_xlim(0, run.load.duration_s)
    return _address(figure)


def _draw_calls(axes: Axes, run: Run) -> None:
    of = _by_name(run)
    _plot(axes, of["offered"], color="black")
    for kind, colour in COLOURS.items():
        if of[kind.value].highest:
            _plot(axes, of[kind.value], color=colour)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def _draw_latencies(axes: Axes, run: Run) -> None:
    for kind, colour in COLOURS.items():
        calls = [record for record in run.result.records if record.outcome is kind]
        if calls:
            axes.scatter(
                [call.planned_s - run.result.began_s for call in calls],
                [1000 * call.latency_s for call in calls],
                s=4,
                color=colour,
                label=kind.value,
                rasterized=True,
            )
    _plot(axes, _by_name(run)["client p95"], color="black")
    deadline_ms = 1000 * run.load.workload.deadline_s
    if run.summary.late:
        axes.axhline(deadline_ms, color="black", linestyle=":", linewidth=1, label="deadline")
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.legend(loc="upper right")


def _draw_lag(axes: Axes, run: Run) -> None:
    _plot(axes, _by_name(run)["generator lag p99"], color="tab:purple")
    axes.axhline(MAX_GENERATOR_LAG_P99_MS, color="black", linestyle=":", linewidth=1)
    axes.set_ylim(bottom=0)


def _lines(*names: str) -> Draw:
    def draw(axes: Axes, run: Run) -> None:
        of = _by_name(run)
        for name in names:
            if of[name].points:
                _plot(axes, of[name])
        if any(of[name].points for name in names):
            axes.legend(loc="lower right")
        else:
            axes.text(0.5, 0.5, "the server does not say", transform=axes.transAxes, ha="center")
        highest = max((of[name].highest or 0.0 for name in names), default=0.0)
        axes.set_ylim(0, 1.1 * highest or 1.0)

    return draw


def _distributions(run: Run) -> str:
    figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
    histogram, accumulated = figure.subplots(1, 2)
    answered = [record for record in run.result.records if record.outcome is Outcome.ANSWERED]
    histogram.hist([1000 * record.latency_s for record in answered], bins=60, color=COLOURS[Outcome.ANSWERED])
    histogram.set(xlabel="ms", ylabel="calls answered")
    for stage in STAGES:
        times = sorted(1000 * time_s for time_s in stage_times(answered, stage))
        if times:
            shares = [(index + 1) / len(times) for index in range(len(times))]
            accumulated.step(times, shares, where="post", label=stage)
    if answered:
        accumulated.set_xscale("log")
        accumulated.legend(loc="lower right")
    accumulated.set(xlabel="ms", ylabel="share of the calls answered")
    accumulated.grid(alpha=0.3)
    return _address(figure)


def _stages(run: Run) -> str:
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    of = _by_name(run)
    for axes, stage in zip(figure.subplots(2, 3, sharex=True).flat, STAGES, strict=True):
        for name in ("p50", "p95"):
            series = of[f"{stage} {name}"]
            axes.plot(*_columns(series), label=name)
        axes.set_title(stage, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, run.load.duration_s)
    figure.legend(["p50", "p95"], loc="outside lower right", ncols=2)
    figure.supxlabel("seconds")
    figure.supylabel("ms")
    return _address(figure)


def _plot(axes: Axes, series: Series, *, color: str | None = None) -> None:
    axes.plot(*_columns(series), label=series.name, color=color)


def _columns(series: Series) -> tuple[Sequence[float], Sequence[float]]:
    return [at_s for at_s, _ in series.points], [value for _, value in series.points]


def _by_name(run: Run) -> dict[str, Series]:
    return {series.name: series for series in run.series}


def _address(figure: Figure) -> str:
    """Return a figure as an address that is its own content."""
    FigureCanvasSVG(figure)
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", dpi=_DPI)
    return f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"
