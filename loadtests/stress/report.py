"""A scenario on paper: one line for people and scripts, everything as JSON, and a picture."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.machine import describe_machine
from loadtests.stress.verdict import Summary


def conclude(summary: Summary, output: Path, *, details: Mapping[str, Any], figure: Figure | None = None) -> int:
    """Write and print a result; return the exit status of the scenario.

    Args:
        summary: of the whole run; its line is the last that is printed.
        output: directory of `SCENARIO.json` and `SCENARIO.png`, which replace older ones.
        details: JSON-ready values for the JSON, beside machine and summary.
        figure: the picture, if there is one.
    """
    output.mkdir(parents=True, exist_ok=True)
    name = summary.scenario.replace("-", "_")
    document = {"machine": describe_machine(), **summary.as_json(), **details}
    (output / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if figure is not None:
        FigureCanvasAgg(figure)
        figure.savefig(output / f"{name}.png", dpi=120)
    tell_broken(summary)
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    print(summary.line, flush=True)
    return summary.exit_status


def tell_broken(summary: Summary) -> None:
    """Print each promise that did not hold."""
    for promise in summary.broken:
        print(f"broken: {promise.sentence}", file=sys.stderr, flush=True)
