"""How every load test writes down what it found: a line of figures, JSON, tables, pictures."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.report.machine import describe_machine
from loadtests.generator.server import Target
from loadtests.generator.calls import Outcome

COLOURS: Final = {
    Outcome.ANSWERED.value: "tab:green",
    Outcome.REJECTED.value: "tab:blue",
    Outcome.LATE.value: "tab:orange",
    Outcome.LEFT.value: "tab:grey",
    Outcome.ERROR.value: "tab:red",
    "offered": "black",
    "client p95": "black",
}
"""Of what became of calls, and of what is drawn beside it, in every picture."""

Points = Sequence[tuple[float, float]]

_DPI: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a load test found: figures of its line, values for JSON, a sentence for each thing that did not hold."""

    name: str
    figures: Mapping[str, object]
    values: Mapping[str, Any]
    broken: Sequence[str]
    table: str = ""
    picture: Figure | None = None
    page: Callable[[], str] = str  # makes it when it is written, as drawing takes a second; empty: there is none

    def conclude(self, output: Path) -> int:
        """Write what there is of `NAME.json`, `NAME.png` and `NAME.html`; print the rest; return the exit code."""
        write_json(output / f"{self.name}.json", self.values)
        if self.picture is not None:
            write_picture(output / f"{self.name}.png", self.picture)
        if page := self.page():
            (output / f"{self.name}.html").write_text(page, encoding="utf-8")
        print(self.table, end="")
        for sentence in self.broken:
            print(f"broken: {sentence}", file=sys.stderr)
        print(figures_line(self.name, self.figures))
        return 1 if self.broken else 0


def circumstances(verb: str) -> dict[str, Any]:
    """Return where and how a verb of `python -m loadtests` was called, for JSON."""
    command = shlex.join(["python", "-m", "loadtests", verb, *sys.argv[1:]])  # fit to be called again
    return {"machine": describe_machine(), "command": command}


def unclean_end(target: Target) -> list[str]:
    """Let a server that was started drain; return a sentence if it failed at the end."""
    return [f"the server ended with {exit_code}"] if (exit_code := target.stop()) else []


def figures_line(name: str, figures: Mapping[str, object]) -> str:
    """Return `name figure=value ...`, for people and scripts; figures that are None are left out."""
    return " ".join([name, *(f"{key}={value}" for key, value in figures.items() if value is not None)])


def rounded(value: float | None, digits: int = 1) -> str:
    """Return a figure as text; `none` where it is not known."""
    return "none" if value is None else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; columns of figures are aligned to the right."""
    is_figure = [all(row[column][:1] in "+-0123456789" for row in rows) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in is_figure]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def write_json(path: Path, values: Any) -> None:
    """Write values in place of an older file; missing folders are made. A number that is not finite is an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return an empty picture, of so many inches, and its panels row by row."""
    made = Figure(figsize=size, layout="constrained")
    return made, list(made.subplots(rows, columns, squeeze=False, **shared).flat)


def plot(axes: Axes, points: Iterable[tuple[float, float]], label: str = "", **style: Any) -> None:
    """Draw points, joined by a line unless the style says otherwise."""
    pairs = list(points)
    axes.plot([x for x, _ in pairs], [y for _, y in pairs], label=label, **style)


def draw(
    axes: Axes,
    lines: Mapping[str, Points],
    *,
    dots: Mapping[str, Points] | None = None,
    limits: Mapping[str, float] | None = None,
    **settings: Any,
) -> None:
    """Draw a panel: lines as far as they have points, dots, and levels across, each by its name; then set the rest."""
    for name, points in (dots or {}).items():
        plot(axes, points, name, color=COLOURS.get(name), marker=".", markersize=3, linestyle="", rasterized=True)
    for name, points in lines.items():
        if points:
            plot(axes, points, name, color=COLOURS.get(name))
    for name, level in (limits or {}).items():
        axes.axhline(level, color="black", linestyle=":", linewidth=1, label=name)
    if axes.lines:
        axes.legend(loc="upper right")
    else:
        axes.text(0.5, 0.5, "the server does not say", transform=axes.transAxes, ha="center")
    axes.set(**settings)
    if "yscale" not in settings:
        axes.set_ylim(bottom=0)


def write_picture(path: Path, figure: Figure) -> None:
    """Draw a figure into a file, in place of an older one; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
