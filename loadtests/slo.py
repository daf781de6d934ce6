"""A service level objective as text, such as `p95<400ms,errors<0.1%`, and whether a run held it."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from loadtests.records import Summary

GRAMMAR: Final = (
    "bounds with commas between them: p50, p90, p95, p99 or max with ms or s; errors, rejected or late with %; "
    "goodput with % or /s; compared by <, <=, > or >=. For instance p95<400ms,errors<0.1%"
)
"""For people, in help and error messages."""

_BOUND: Final = re.compile(r"\s*([a-z0-9]+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|%|/s)\s*")
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FACTORS: Final = {"ms": 0.001, "s": 1.0, "%": 0.01, "/s": 1.0}
"""To seconds, shares and calls a second."""

_LATENCIES: Final = ("p50", "p90", "p95", "p99", "max")
_SHARES: Final = ("errors", "rejected", "late")
_UNITS: Final = {
    **dict.fromkeys(_LATENCIES, ("ms", "s")),
    **dict.fromkeys(_SHARES, ("%",)),
    "goodput": ("%", "/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One figure, compared with a number."""

    figure: str
    """A latency, a share or `goodput`."""

    comparison: str
    limit: float
    """In the unit that was written."""

    unit: str

    def __str__(self) -> str:
        """Return the text that it is parsed from."""
        return f"{self.figure}{self.comparison}{_number(self.limit)}{self.unit}"

    def measured(self, summary: Summary) -> float | None:
        """Return the figure in the unit of the bound; None if no call was taken, so that there is no latency."""
        if self.figure in _LATENCIES:
            value = None if summary.latency is None else getattr(summary.latency, f"{self.figure}_ms") / 1000
        elif self.figure == "goodput":
            value = summary.goodput if self.unit == "%" else summary.goodput_per_s
        else:
            value = getattr(summary, self.figure) / summary.offered
        return None if value is None else value / _FACTORS[self.unit]

    def broken(self, summary: Summary) -> str | None:
        """Return a sentence with the figure and its limit; None if it holds."""
        value = self.measured(summary)
        if value is None:
            return f"{self.figure} is not known, as the server took no call; the limit is {self._limit}"
        if _COMPARE[self.comparison](value, self.limit):
            return None
        return f"{self.figure} is {_number(float(f'{value:.4g}'))}{self.unit}, the limit is {self._limit}"

    @property
    def _limit(self) -> str:
        return f"{self.comparison} {_number(self.limit)}{self.unit}"


@dataclass(frozen=True, slots=True)
class Slo:
    """What a run must keep."""

    bounds: tuple[Bound, ...]
    """At least one."""

    def __str__(self) -> str:
        """Return the text that it is parsed from."""
        return ",".join(map(str, self.bounds))

    def broken(self, summary: Summary) -> list[str]:
        """Return a sentence for each bound that a run did not keep."""
        sentences = (bound.broken(summary) for bound in self.bounds)
        return [sentence for sentence in sentences if sentence is not None]


def parse_slo(text: str) -> Slo:
    """Return what a text asks for.

    Raises:
        ValueError: if it asks for nothing that is known; the message names the part and the grammar.
    """
    return Slo(tuple(_bound(part) for part in text.split(",")))


def _bound(part: str) -> Bound:
    match = _BOUND.fullmatch(part)
    if match is None or match[1] not in _UNITS:
        raise ValueError(f"{part.strip()!r} is no bound; expected {GRAMMAR}")
    if match[4] not in _UNITS[match[1]]:
        raise ValueError(f"{part.strip()!r}: {match[1]} is measured in {' or '.join(_UNITS[match[1]])}, not {match[4]}")
    return Bound(figure=match[1], comparison=match[2], limit=float(match[3]), unit=match[4])


def _number(value: float) -> str:
    """Return the shortest text without an exponent."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
