"""A run beside one that was kept: how every figure changed, and which are worse than they may be."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
"""Of `loadtest.json`; a baseline of another one is refused."""

JUDGED: Final[Mapping[str, int]] = {"p50_ms": 1, "p95_ms": 1, "goodput_per_s": -1, "tokens_per_s": -1}
"""Figures that may not become worse, and in which direction worse is. What is refused, late or an error lowers the
goodput."""

_Figures = Mapping[str, float | None]


def read_baseline(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run that was kept as `loadtest.json`.

    Args:
        path: of the file.
        settings: of the load that is to be compared with it.

    Raises:
        ValueError: if the file is none, or of another load; the message names what differs.
    """
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found, before = kept["format"], kept["settings"]
        kept["machine"]["cpu"], kept["machine"]["cores"], kept["figures"].items(), before.items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no run of a load test ({type(error).__name__}: {error})") from error
    if found != FORMAT:
        raise ValueError(f"{path}: is of format {found}, expected {FORMAT}: keep a new baseline")
    if changed := [name for name in settings if before.get(name) != settings[name]]:
        pairs = "; ".join(f"{name} {before.get(name)}, now {settings[name]}" for name in changed)
        raise ValueError(f"the baseline is of another load: {pairs}; offer the same, or keep a new baseline")
    return kept


def differing_machine(kept: Mapping[str, Any], machine: Mapping[str, Any]) -> str | None:
    """Return a sentence if a run was measured on another machine."""
    before, now = (f"{one['cpu']} with {one['cores']} cores" for one in (kept["machine"], machine))
    return None if before == now else f"the baseline is of {before}, this run of {now}"


def regressions(before: _Figures, now: _Figures, most: float) -> list[str]:
    """Return a sentence for each judged figure that is worse than before by more than this share."""
    sentences = []
    for name, direction in JUDGED.items():
        was, value = before.get(name), now[name]
        if was is None:
            continue
        if value is None:
            sentences.append(f"{name} was {was:.4g} in the baseline and is not known now")
        elif was and (worse := direction * (value - was) / was) > most:
            sentences.append(
                f"{name} is {value:.4g}, the baseline has {was:.4g}: worse by {worse:.1%}, the limit is {most:.1%}"
            )
    return sentences


def rows(before: _Figures, now: _Figures) -> list[tuple[str, ...]]:
    """Return name, baseline, now and change of every figure, as they are shown; those that are judged have a star."""
    shown = []
    for name, value in now.items():
        was = before.get(name)
        change = f"{value / was - 1:+.1%}" if was and value is not None else ""
        numbers = ("none" if one is None else f"{one:.4g}" for one in (was, value))
        shown.append((f"{name} *" if name in JUDGED else name, *numbers, change))
    return shown


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as `rows` does for a terminal."""
    every = [("figure", "baseline", "now", "change"), *rows]
    name, *widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return "\n".join(
        "  ".join([f"{row[0]:<{name}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True))])
        for row in every
    )


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
