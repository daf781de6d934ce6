"""The results as pictures: ratios by case, and how cost grows with length."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_DPI = 120


def write_plots(directory: Path, record: Mapping[str, Any]) -> None:
    """Write `ratios.png` and, if lengths were swept, `growth.png`."""
    duels = [(case, duel) for case in record["cases"] for duel in case["duels"] if case["kind"] == "speed"]
    if duels:
        _save(_ratios(duels), directory / "ratios.png")
    swept = [case for case in record["cases"] if case["kind"] == "growth"]
    if swept:
        _save(_growth(swept), directory / "growth.png")


def _ratios(duels: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Figure:
    """Draw a bar for each duel; beyond the line ours is faster."""
    names = [f"{case['model']} {case['case']} @{duel['threads']} vs {duel['vs']}" for case, duel in duels]
    figure = Figure(figsize=(9, 1 + 0.25 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(names, [duel["ratio"] for _, duel in duels])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("speed of ours, theirs = 1")
    return figure


def _growth(cases: list[Mapping[str, Any]]) -> Figure:
    """Draw the time of a batch over the length of its targets."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lengths = [case["search"]["max_target_tokens"] for case in cases]
    for side, name in (("ours", "dragoman-int8"), ("theirs", cases[0]["duels"][0]["vs"])):
        speeds = [case["duels"][0][f"{side}_tokens_per_s"] for case in cases]
        counts = [case["num_sources"] * length for case, length in zip(cases, lengths, strict=True)]
        axes.plot(lengths, [count / speed for count, speed in zip(counts, speeds, strict=True)], marker="o", label=name)
    axes.set_xlabel("target tokens of each sentence")
    axes.set_ylabel(f"seconds for a batch of {cases[0]['num_sources']}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)
