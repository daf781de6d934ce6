"""How long bystanders waited while one fault after the other was done, in one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.chaos.verdict import TrialResult, broken_promises

_INCHES: Final = (13, 5)
_HELD, _BROKEN = "tab:green", "tab:red"


def draw(path: Path, results: Sequence[TrialResult]) -> None:
    """Draw every translation that a bystander waited for; a fault's span is red if it broke a promise."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    origin_s = results[0].began_s
    for number, result in enumerate(results):
        begin_s = result.began_s - origin_s
        color = _BROKEN if broken_promises(result) else _HELD
        axes.axvspan(begin_s, begin_s + result.elapsed_s, color=color, alpha=0.12 if number % 2 else 0.22, linewidth=0)
        middle_s = begin_s + result.elapsed_s / 2
        axes.text(
            middle_s, 0.98, result.fault, rotation=90, ha="center", va="top", transform=axes.get_xaxis_transform()
        )
        begins = [reply.began_s - origin_s for reply in result.translations]
        axes.plot(begins, [reply.latency_s for reply in result.translations], ".", color="tab:blue", markersize=2)
    axes.set(xlabel="began, s", ylabel="latency of a bystander's translation, s", yscale="log")
    axes.grid(visible=True, which="both", axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)
