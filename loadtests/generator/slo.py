"""Service level objectives as text, such as `p95<400ms,errors<0.1%`."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

GRAMMAR: Final = (
    "comma-separated bounds: p50, p90, p95, p99 or max in ms or s; errors, rejected or late in %; "
    "goodput in % or /s; operators <, <=, >, >=. Example: p95<400ms,errors<0.1%"
)

_BOUND: Final = re.compile(r"\s*([a-z0-9]+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|%|/s)\s*")
_COMPARE: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FACTORS: Final = {"ms": 0.001, "s": 1.0, "%": 0.01, "/s": 1.0}  # to seconds, shares and calls per second

_LATENCIES: Final = ("p50", "p90", "p95", "p99", "max")
_UNITS: Final = {
    **dict.fromkeys(_LATENCIES, ("ms", "s")),
    **dict.fromkeys(("errors", "rejected", "late"), ("%",)),
    "goodput": ("%", "/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit for one figure, in the unit in which it was written."""

    figure: str
    comparison: str
    limit: float
    unit: str

    def __str__(self) -> str:
        return f"{self.figure}{self.comparison}{_number(self.limit)}{self.unit}"

    def violation(self, figures: Mapping[str, float | None]) -> str | None:
        """Return a sentence with the figure and its limit, or None if the bound holds."""
        limit = f"limit {self.comparison} {_number(self.limit)}{self.unit}"
        value = figures[f"{self.figure}/s" if self.unit == "/s" else self.figure]
        if value is None:
            return f"{self.figure} is unknown because no call was accepted, {limit}"
        value /= _FACTORS[self.unit]
        if _COMPARE[self.comparison](value, self.limit):
            return None
        return f"{self.figure} is {_number(float(f'{value:.4g}'))}{self.unit}, {limit}"


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: one or more bounds."""

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.bounds))

    def violations(self, figures: Mapping[str, float | None]) -> list[str]:
        """Return a sentence for each bound that the figures violate.

        Figures have the names of the grammar: latencies in seconds (None: unknown), shares, and `goodput/s`.
        """
        return [sentence for bound in self.bounds if (sentence := bound.violation(figures))]


def parse_slo(text: str) -> Slo:
    """Parse an objective; raises ValueError with the invalid part and the grammar."""
    bounds = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part)
        if match is None or match[1] not in _UNITS:
            raise ValueError(f"{part.strip()!r} is not a bound; expected {GRAMMAR}")
        figure, comparison, limit, unit = match.groups()
        if unit not in _UNITS[figure]:
            raise ValueError(f"{part.strip()!r}: the unit of {figure} is {' or '.join(_UNITS[figure])}, not {unit}")
        bounds.append(Bound(figure=figure, comparison=comparison, limit=float(limit), unit=unit))
    return Slo(tuple(bounds))


def _number(value: float) -> str:
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
