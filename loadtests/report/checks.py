"""What a scenario came to: its figures, each promise, held or broken; and its report: a line, JSON, a picture."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.report.machine import describe_machine
from loadtests.report.report import Report, figures_line

_MAX_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Something that must hold whatever the scenario does."""

    name: str
    broken: Sequence[str] = ()  # sentences of what did not hold
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What is printed of a broken promise: the first few of its sentences."""
        more = len(self.broken) - _MAX_SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return f"{self.name}: {'; '.join(self.broken[:_MAX_SHOWN])}{rest}"


def at_most(name: str, value: float, limit: float, *, unit: str = "") -> Promise:
    """Return the promise that a figure is not above its limit."""
    broken = [] if value <= limit else [f"{value:.4g}{unit and ' '}{unit}, more than {limit:g}"]
    return Promise(name=name, broken=broken, figures={"value": value, "limit": limit})


def require(name: str, holds: bool, otherwise: str) -> Promise:
    """Return the promise that something holds; `otherwise` says what is so if it does not."""
    return Promise(name=name, broken=() if holds else (otherwise,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of one scenario, or of one part of it."""

    scenario: str
    figures: Mapping[str, object]
    promises: Sequence[Promise]
    notes: Sequence[str] = ()  # sentences for people that break no promise

    @property
    def broken(self) -> list[Promise]:
        """The promises that did not hold."""
        return [promise for promise in self.promises if promise.broken]

    @property
    def verdict(self) -> str:
        """`held` or `broken`."""
        return "broken" if self.broken else "held"

    @property
    def line(self) -> str:
        """`SCENARIO name=value ... verdict=held`."""
        return figures_line(self.scenario, {**self.figures, "verdict": self.verdict})

    def as_json(self) -> dict[str, Any]:
        """Return figures, promises and verdict as JSON-ready values."""
        promises = [{"held": not promise.broken, **asdict(promise)} for promise in self.promises]
        return {**asdict(self), "verdict": self.verdict, "promises": promises}


def conclude(summary: Summary, output: Path, *, details: Mapping[str, Any], figure: Figure | None = None) -> int:
    """Write `SCENARIO.json`, with `details` beside machine and summary, and `SCENARIO.png`; return the exit code."""
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    return Report(
        name=summary.scenario,
        figures={**summary.figures, "verdict": summary.verdict},
        values={"machine": describe_machine(), **summary.as_json(), **details},
        broken=[promise.sentence for promise in summary.broken],
        picture=figure,
    ).conclude(output)


def print_broken(summary: Summary) -> None:
    """Print each promise that did not hold."""
    for promise in summary.broken:
        print(f"broken: {promise.sentence}", file=sys.stderr, flush=True)
