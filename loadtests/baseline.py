"""A run beside one that was kept: how every figure changed, and which are worse than they may be."""

import json
import math
from collections.abc import Mapping
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


def compare(before: _Figures, now: _Figures, most: float) -> tuple[list[list[str]], list[str]]:
    """Return how figures changed, and a sentence for each judged one that is worse by more than a share.

    Returns:
        Name, baseline, now and change of every figure, as they are shown, a star behind the name of those that are
        judged; and the sentences.
    """
    rows, sentences = [], []
    for name, value in now.items():
        was = before.get(name)
        then, here = ("none" if one is None else f"{one:.4g}" for one in (was, value))
        change = value / was - 1 if was and value is not None else None
        rows.append([f"{name} *" if name in JUDGED else name, then, here, "" if change is None else f"{change:+.1%}"])
        worse = JUDGED.get(name, 0) * (change or 0.0)
        if name in JUDGED and was is not None and value is None:
            sentences.append(f"{name} was {then} in the baseline and is not known now")
        elif worse > most:
            sentences.append(
                f"{name} is {here}, the baseline has {then}: worse by {worse:.1%}, the limit is {most:.1%}"
            )
    return rows, sentences


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
