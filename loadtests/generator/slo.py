"""A service level objective as text, such as `p95<400ms,errors<0.1%`, and whether a run held it."""

import operator
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from loadtests.generator.records import Summary

GRAMMAR: Final = (
    "bounds with commas between them: p50, p90, p95, p99 or max with ms or s; errors, rejected or late with %; "
    "goodput with % or /s; compared by <, <=, > or >=. For instance p95<400ms,errors<0.1%"
)
"""For people, in help and error messages."""

_BOUND: Final = re.compile(r"\s*([a-z0-9]+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|%|/s)\s*")
_COMPARE: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FACTORS: Final = {"ms": 0.001, "s": 1.0, "%": 0.01, "/s": 1.0}  # to seconds, shares and calls a second

_LATENCIES: Final = ("p50", "p90", "p95", "p99", "max")
_UNITS: Final = {
    **dict.fromkeys(_LATENCIES, ("ms", "s")),
    **dict.fromkeys(("errors", "rejected", "late"), ("%",)),
    "goodput": ("%", "/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One figure, compared with a number in the unit that was written."""

    figure: str
    comparison: str
    limit: float
    unit: str

    def __str__(self) -> str:
        return f"{self.figure}{self.comparison}{_number(self.limit)}{self.unit}"

    def broken(self, summary: Summary) -> str | None:
        """Return a sentence with the figure and its limit; None if it holds."""
        limit = f"the limit is {self.comparison} {_number(self.limit)}{self.unit}"
        if self.figure not in _LATENCIES:
            share = summary.goodput if self.figure == "goodput" else getattr(summary, self.figure) / summary.offered
            value = summary.goodput_per_s if self.unit == "/s" else share
        elif summary.latency is not None:
            value = getattr(summary.latency, f"{self.figure}_ms") / 1000
        else:
            return f"{self.figure} is not known, as the server took no call; {limit}"
        value /= _FACTORS[self.unit]
        if _COMPARE[self.comparison](value, self.limit):
            return None
        return f"{self.figure} is {_number(float(f'{value:.4g}'))}{self.unit}, {limit}"


@dataclass(frozen=True, slots=True)
class Slo:
    """What a run must keep: at least one bound."""

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.bounds))

    def broken(self, summary: Summary) -> list[str]:
        """Return a sentence for each bound that a run did not keep."""
        return [sentence for bound in self.bounds if (sentence := bound.broken(summary))]


def parse_slo(text: str) -> Slo:
    """Return what a text asks for; ValueError, with the part and the grammar, if that is nothing known."""
    bounds = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part)
        if match is None or match[1] not in _UNITS:
            raise ValueError(f"{part.strip()!r} is no bound; expected {GRAMMAR}")
        figure, comparison, limit, unit = match.groups()
        if unit not in _UNITS[figure]:
            raise ValueError(f"{part.strip()!r}: {figure} is measured in {' or '.join(_UNITS[figure])}, not {unit}")
        bounds.append(Bound(figure=figure, comparison=comparison, limit=float(limit), unit=unit))
    return Slo(tuple(bounds))


def _number(value: float) -> str:
    """Return the shortest text without an exponent."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
