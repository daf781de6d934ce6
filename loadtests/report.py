"""How every load test writes down what it found: a line of figures, JSON, pictures."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.wire import Outcome

COLOURS: Final = {
    Outcome.ANSWERED: "tab:green",
    Outcome.REJECTED: "tab:blue",
    Outcome.LATE: "tab:orange",
    Outcome.LEFT: "tab:grey",
    Outcome.ERROR: "tab:red",
}
"""Of what became of calls, in every picture."""

_DPI: Final = 120


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
    """Write values in place of an older file; missing folders are made.

    Raises:
        ValueError: if a number is not finite.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_picture(path: Path, figure: Figure) -> None:
    """Draw a figure into a file, in place of an older one; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def command_line(verb: str) -> str:
    """Return how a verb of `python -m loadtests` was called, fit to be called again."""
    return shlex.join(["python", "-m", "loadtests", verb, *sys.argv[1:]])
