"""Invariants of all call schedules and objectives."""

import math
import operator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadtests.generator.arrivals import Arrivals, make_schedule, parse_arrivals
from loadtests.generator.slo import Bound, Slo, parse_slo
from tests.unit.loadtests.samples import summary_of

_RATES, _DURATIONS, _SEEDS = st.floats(0.1, 200.0), st.floats(0.01, 30.0), st.integers(0, 2**32)


def _burst(rate_per_s: float, every_s: float, share: float) -> Arrivals:
    rate_per_s = max(rate_per_s, 1 / every_s)
    size = max(1, math.floor(share * rate_per_s * every_s))
    return parse_arrivals(f"burst:every={every_s!r},size={size}", rate_per_s=rate_per_s)


def _ramp(start_per_s: float, end_per_s: float) -> Arrivals:
    return parse_arrivals(f"ramp:from={start_per_s!r},to={end_per_s!r}", rate_per_s=1.0)


_MADE: st.SearchStrategy[Arrivals] = st.one_of(
    st.builds(Arrivals, st.sampled_from(["poisson", "constant"]), _RATES),
    st.builds(_burst, _RATES, st.floats(0.01, 20.0), st.floats(0.01, 1.0)),
    st.builds(_ramp, _RATES, st.floats(0.0, 200.0)),
    st.builds(_ramp, st.floats(0.0, 200.0), _RATES),
)
_OFFSETS = st.lists(st.floats(0.0, 60.0), min_size=1).map(sorted)
_TRACES = st.builds(Arrivals, st.just("trace:calls.txt"), st.just(1.0), offsets_s=_OFFSETS)


@given(_MADE | _TRACES, _DURATIONS, st.floats(0.0, 5.0), _SEEDS)
def test_times_ascend_within_the_duration(arrivals: Arrivals, duration_s: float, warm_up_s: float, seed: int) -> None:
    times = arrivals.times(duration_s, seed)
    schedule = make_schedule(arrivals, warm_up_s=warm_up_s, duration_s=duration_s, seed=seed)

    assert times == sorted(times)
    assert all(0 <= at_s < duration_s for at_s in times)
    assert [arrival.number for arrival in schedule] == list(range(len(schedule)))
    offsets_s = [arrival.offset_s for arrival in schedule]
    assert offsets_s == sorted(offsets_s)
    assert offsets_s[len(schedule) - len(times) :] == [warm_up_s + at_s for at_s in times]


@given(_MADE, _SEEDS)
def test_number_of_calls_corresponds_to_the_rate(arrivals: Arrivals, seed: int) -> None:
    duration_s, size = 500 / arrivals.rate_per_s, int(arrivals.settings.get("size", 1))
    if every_s := arrivals.settings.get("every"):
        duration_s = every_s * math.ceil(duration_s / every_s)  # whole bursts
    expected = arrivals.rate_per_s * duration_s

    count = len(arrivals.times(duration_s, seed))

    # 6 standard deviations of a Poisson count occur once in 10^9 runs. A burst may lie across the end.
    assert abs(count - expected) <= 6 * math.sqrt(expected) + size


@given(_MADE, _DURATIONS, _SEEDS)
def test_text_of_arrivals_can_be_parsed_again(arrivals: Arrivals, duration_s: float, seed: int) -> None:
    parsed = parse_arrivals(arrivals.text, rate_per_s=arrivals.rate_per_s)

    assert parsed.times(duration_s, seed) == arrivals.times(duration_s, seed)


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

    assert bool(Slo((bound,)).violations(summary)) is not _COMPARE[bound.comparison](figure, bound.limit)


@given(st.sampled_from(["burst:", "ramp:", "poisson", "trace:", ""]), st.text(max_size=30))
def test_other_text_raises_a_value_error(start: str, rest: str) -> None:
    with suppress(ValueError):
        slo = parse_slo(rest)
        assert parse_slo(str(slo)) == slo
    with suppress(ValueError):
        arrivals = parse_arrivals(start + rest, rate_per_s=1.0)
        assert all(0 <= at_s < 1 for at_s in arrivals.times(1.0, seed=1))
