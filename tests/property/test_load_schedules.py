"""Invariants of all call schedules and objectives."""

import math
import operator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadtests.generator.runner import Load, poisson_times, schedule
from loadtests.generator.slo import Bound, Slo, parse_slo
from loadtests.generator.workload import Workload
from tests.unit.loadtests.samples import summary_of

_RATES, _DURATIONS, _SEEDS = st.floats(0.1, 200.0), st.floats(0.01, 30.0), st.integers(0, 2**32)


@given(_RATES, _DURATIONS, st.floats(0.0, 5.0), _SEEDS)
def test_times_ascend_within_the_duration(rate_per_s: float, duration_s: float, warm_up_s: float, seed: int) -> None:
    times = poisson_times(rate_per_s, duration_s, seed)
    load = Load(workload=Workload(), rate_per_s=rate_per_s, duration_s=duration_s, warm_up_s=warm_up_s, seed=seed)
    offsets_s = schedule(load)

    assert times == sorted(times)
    assert all(0 <= at_s < duration_s for at_s in times)
    assert offsets_s == sorted(offsets_s)
    assert offsets_s[len(offsets_s) - len(times) :] == [warm_up_s + at_s for at_s in times]


@given(_RATES, _SEEDS)
def test_number_of_calls_corresponds_to_the_rate(rate_per_s: float, seed: int) -> None:
    count = len(poisson_times(rate_per_s, 500 / rate_per_s, seed))

    assert abs(count - 500) <= 6 * math.sqrt(500)  # 6 standard deviations of a Poisson count occur once in 10^9 runs


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


@given(st.text(max_size=30))
def test_other_text_raises_a_value_error(text: str) -> None:
    with suppress(ValueError):
        slo = parse_slo(text)
        assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(("rate_per_s", "duration_s"), [(0.0, 1.0), (1e6, 1.0), (1.0, 0.0), (1.0, math.inf)])
def test_invalid_rate_or_duration_is_rejected(rate_per_s: float, duration_s: float) -> None:
    with pytest.raises(ValueError, match="calls/s for"):
        poisson_times(rate_per_s, duration_s, seed=1)
