"""The curve as a picture: latency against load, with the throughput on it."""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.capacity.record import CapacityRun

PICTURE_NAME: Final = "capacity.png"
_DPI: Final = 120
_LATENCIES: Final = {"p50": "tab:blue", "p95": "tab:orange", "p99": "tab:red"}
_THROUGHPUT: Final = "tab:green"


def write_picture(path: Path, found: CapacityRun) -> None:
    """Draw latencies on the left axis, calls answered and refused on the right one, against the calls that come."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    latencies = figure.subplots()
    throughput = latencies.twinx()
    _draw_latencies(latencies, found)
    _draw_throughput(throughput, found)
    latencies.axvline(found.capacity.per_s, color="black", linestyle="--", linewidth=1, label="capacity")
    latencies.set_xlim(left=0)
    latencies.set_xlabel(f"calls a second (capacity {found.capacity.per_s:.1f}: {found.objective})")
    latencies.set_title(f"{found.title}\n{found.machine['cpu']}, {found.machine['cores']} cores", fontsize="medium")
    lines = [*latencies.get_lines(), *throughput.get_lines()]
    latencies.legend(lines, [str(one.get_label()) for one in lines], fontsize="small", loc="upper left")
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _draw_latencies(axes: Axes, found: CapacityRun) -> None:
    runs = [point.run for point in found.points if point.run.summary.latency]
    rates = [run.summary.offered_per_s for run in runs]
    for name, colour in _LATENCIES.items():
        values = [getattr(run.summary.latency, f"{name}_ms") for run in runs]
        axes.plot(rates, values, marker="o", markersize=4, color=colour, label=f"latency {name}")
    axes.set_yscale("log")
    axes.set_ylabel("ms")


def _draw_throughput(axes: Axes, found: CapacityRun) -> None:
    rates = [point.run.summary.offered_per_s for point in found.points]
    answered = [point.throughput_per_s for point in found.points]
    refused = [point.run.summary.rejected / point.run.summary.duration_s for point in found.points]
    axes.plot(rates, answered, color=_THROUGHPUT, linestyle="-.", label="answered in time")
    if any(refused):
        axes.plot(rates, refused, color=_THROUGHPUT, linestyle=":", label="refused")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("calls a second")
