"""The comparison as one picture: latency against load of both servers, and what it should be."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.capacity.search import Capacity, Run
from loadtests.peers.under_load.results import MAX_LATENCY_RATIO, MIN_CAPACITY_RATIO, LoadPoint, Rivalry

PICTURE_NAME: Final = "load.png"
_DPI: Final = 120
_OURS, _THEIRS, _TARGET = "tab:blue", "tab:orange", "black"


def write_picture(path: Path, rivalries: Sequence[Rivalry]) -> None:
    """Draw p50 above, p95 below, a column for each rival and model; at least one."""
    figure = Figure(figsize=(1 + 4.5 * len(rivalries), 7), layout="constrained")
    axes = figure.subplots(2, len(rivalries), sharex="col", squeeze=False)
    for column, rivalry in enumerate(rivalries):
        for row, name in enumerate(("p50_ms", "p95_ms")):
            _draw(axes[row][column], rivalry, name)
        axes[0][column].set_title(
            f"{rivalry.model} model, against {rivalry.peer} {rivalry.settings}", fontsize="medium"
        )
        axes[1][column].set_xlabel(f"load, % of {rivalry.peer}'s capacity ({rivalry.their_capacity.per_s:.1f} calls/s)")
    axes[0][0].legend(fontsize="small")
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _draw(axes: Axes, rivalry: Rivalry, name: str) -> None:
    """Draw one figure of both over the load: medians with all repetitions, probes of the searches small."""
    unit_per_s = rivalry.their_capacity.per_s
    for label, colour, sides, capacity in (
        ("ours", _OURS, [point.ours for point in rivalry.points], rivalry.our_capacity),
        (rivalry.peer, _THEIRS, [point.theirs for point in rivalry.points], rivalry.their_capacity),
    ):
        loads = [100 * point.load for point in rivalry.points]
        axes.plot(loads, [_middle(runs, name) for runs in sides], marker="o", color=colour, label=label)
        axes.scatter(*_points((run for runs in sides for run in runs), unit_per_s, name), s=8, color=colour)
        held = (probe.run for probe in capacity.probes if not probe.broken)
        axes.scatter(*_points(held, unit_per_s, name), s=8, color=colour, alpha=0.4, marker="x")
        _mark_capacity(axes, capacity, unit_per_s, colour)
    axes.axvline(100 * MIN_CAPACITY_RATIO, color=_TARGET, linestyle=":", linewidth=1, label="target for ours")
    axes.plot(*_targets(rivalry.points, name), marker="_", markersize=14, color=_TARGET, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_ylabel(f"{name.removesuffix('_ms')}, ms")


def _mark_capacity(axes: Axes, capacity: Capacity, unit_per_s: float, colour: str) -> None:
    axes.axvline(100 * capacity.per_s / unit_per_s, color=colour, linestyle="--", linewidth=1)


def _middle(runs: Sequence[Run], name: str) -> float:
    return float(median(getattr(run, name) for run in runs))


def _points(runs: Iterable[Run], unit_per_s: float, name: str) -> tuple[list[float], list[float]]:
    listed = list(runs)
    return [100 * run.rate_per_s / unit_per_s for run in listed], [getattr(run, name) for run in listed]


def _targets(points: Sequence[LoadPoint], name: str) -> tuple[list[float], list[float]]:
    return [100 * point.load for point in points], [MAX_LATENCY_RATIO * _middle(point.theirs, name) for point in points]
