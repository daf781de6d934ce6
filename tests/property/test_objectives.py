"""Invariants of service-level objectives."""

import operator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadtests.generator.slo import Bound, Slo, parse_slo
from tests.unit.loadtests.samples import summary_of

_UNITS = {"p50": ("ms", "s"), "max": ("ms", "s"), "errors": ("%",), "late": ("%",), "goodput": ("%", "/s")}
_COMPARE: dict[str, Any] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_BOUNDS = st.builds(
    lambda pair, comparison, limit: Bound(figure=pair[0], comparison=comparison, limit=limit, unit=pair[1]),
    st.sampled_from([(figure, unit) for figure, units in _UNITS.items() for unit in units]),
    st.sampled_from(list(_COMPARE)),
    st.floats(0, 1e6),
)


@given(st.lists(_BOUNDS, min_size=1, max_size=5))
def test_text_of_an_objective_can_be_parsed_again(bounds: list[Bound]) -> None:
    assert parse_slo(str(Slo(tuple(bounds)))) == Slo(tuple(bounds))


@given(_BOUNDS, st.floats(0.0, 100.0), st.integers(1, 100), st.integers(0, 100))
def test_bound_is_violated_exactly_beyond_its_limit(bound: Bound, latency_s: float, answered: int, errors: int) -> None:
    summary = summary_of(latencies_s=[latency_s] * answered, num_errors=errors)
    shares = {"errors": errors / (answered + errors), "late": 0.0, "goodput": answered / (answered + errors)}
    units = {"ms": 1000 * latency_s, "s": latency_s, "%": 100 * shares.get(bound.figure, 0.0), "/s": answered / 10}
    figure = units[bound.unit]
    assume(figure != pytest.approx(bound.limit))  # the last bit of a division is not exact

    assert bool(Slo((bound,)).violations(summary.figures)) is not _COMPARE[bound.comparison](figure, bound.limit)
