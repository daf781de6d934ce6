"""A run beside one that was kept: how every figure changed, and which are worse than they may be."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.load.run import FORMAT

JUDGED: Final[Mapping[str, int]] = {"p50_ms": 1, "p95_ms": 1, "goodput_per_s": -1, "tokens_per_s": -1}
"""Figures that may not become worse, and in which direction worse is. What is refused, late or an error lowers the
goodput."""


class BaselineError(Exception):
    """A kept run that this one cannot be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure, then and now."""

    name: str
    before: float | None
    now: float | None

    @property
    def share(self) -> float | None:
        """By how much it changed, as a share of what it was; None if one of both is not known, or it was 0."""
        if self.before is None or self.now is None or not self.before:
            return None
        return self.now / self.before - 1

    def regression(self, most: float) -> str | None:
        """Return a sentence if the figure is judged, and worse by more than this share; else None."""
        if self.name not in JUDGED or self.before is None:
            return None
        if self.now is None:
            return f"{self.name} was {self.before:.4g} in the baseline and is not known now"
        worse = JUDGED[self.name] * (self.now - self.before) / self.before if self.before else math.nan
        if not worse > most:
            return None
        return (
            f"{self.name} is {self.now:.4g}, the baseline has {self.before:.4g}: worse by {worse:.1%}, "
            f"the limit is {most:.1%}"
        )


def read_baseline(path: Path) -> dict[str, Any]:
    """Return a run that was kept, as `loadtests.load.run.as_json` wrote it.

    Raises:
        BaselineError: if the file is none.
    """
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            raise BaselineError(f"{path}: is of format {kept['format']}, expected {FORMAT}: keep a new baseline")
        kept["settings"], kept["machine"]["cpu"], kept["machine"]["cores"], kept["figures"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path}: no run of a load test ({type(error).__name__}: {error})") from error
    return kept


def require_same(kept: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Check that the same was offered.

    Raises:
        BaselineError: naming what differs.
    """
    before = kept["settings"]
    different = [name for name in settings if before.get(name) != settings[name]]
    if different:
        pairs = "; ".join(f"{name} {before.get(name)}, now {settings[name]}" for name in different)
        raise BaselineError(f"the baseline is of another load: {pairs}; offer the same, or keep a new baseline")


def differing_machine(kept: Mapping[str, Any], machine: Mapping[str, Any]) -> str | None:
    """Return a sentence if a run was measured on another machine."""
    before, now = (f"{one['cpu']} with {one['cores']} cores" for one in (kept["machine"], machine))
    return None if before == now else f"the baseline is of {before}, this run of {now}"


def changes(kept: Mapping[str, Any], figures: Mapping[str, float | None]) -> list[Change]:
    """Return every figure, then and now."""
    return [Change(name=name, before=kept["figures"].get(name), now=now) for name, now in figures.items()]


def table(changes: Sequence[Change]) -> str:
    """Return the figures for a terminal."""
    rows = [("figure", "baseline", "now", "change"), *(row(change) for change in changes)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{name:<{widths[0]}}  {before:>{widths[1]}}  {now:>{widths[2]}}  {share:>{widths[3]}}"
        for name, before, now, share in rows
    )


def row(change: Change) -> tuple[str, str, str, str]:
    """Return name, baseline, now and change of a figure, as they are shown; those that are judged have a star."""
    share = "" if change.share is None else f"{change.share:+.1%}"
    star = " *" if change.name in JUDGED else ""
    return f"{change.name}{star}", _number(change.before), _number(change.now), share


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def parse_share(text: str) -> float:
    """Return the share that a text such as `10%` or `0.1` names.

    Raises:
        ValueError: if it names none, or a negative one.
    """
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < math.inf:
        raise ValueError(f"{text}: expected a share such as 10%")
    return share
