"""A scenario on paper: one line for people and scripts, everything as JSON, and a picture."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from loadtests.machine import describe_machine
from loadtests.report import write_json, write_picture
from loadtests.stress.verdict import Summary


def conclude(summary: Summary, output: Path, *, details: Mapping[str, Any], figure: Figure | None = None) -> int:
    """Write `SCENARIO.json`, with `details` beside machine and summary, and `SCENARIO.png`; print the line.

    Returns:
        The exit status of the scenario.
    """
    name = summary.scenario.replace("-", "_")
    write_json(output / f"{name}.json", {"machine": describe_machine(), **summary.as_json(), **details})
    if figure is not None:
        write_picture(output / f"{name}.png", figure)
    print_broken(summary)
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    print(summary.line, flush=True)
    return summary.exit_status


def print_broken(summary: Summary) -> None:
    """Print each promise that did not hold."""
    for promise in summary.broken:
        print(f"broken: {promise.sentence}", file=sys.stderr, flush=True)
