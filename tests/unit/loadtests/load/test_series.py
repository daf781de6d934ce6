import math
from collections.abc import Sequence

import pytest

from loadtests.load.series import Series, call_series, server_series
from loadtests.records import CallRecord
from loadtests.sampler import Sample
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record
from tests.unit.loadtests.load.fake_runs import BEGAN_S, answered, sample


def server(samples: Sequence[Sample], *, duration_s: float) -> dict[str, Series]:
    return {one.name: one for one in server_series(samples, began_s=BEGAN_S, duration_s=duration_s)}


def calls(records: Sequence[CallRecord], *, duration_s: float) -> dict[str, Series]:
    return {one.name: one for one in call_series(records, began_s=BEGAN_S, duration_s=duration_s)}


def test_gauges_are_shown_as_they_stand_and_counters_as_they_grow() -> None:
    samples = [sample(float(second)) for second in range(-5, 13)]

    series = server(samples, duration_s=10.0)

    assert series["queue"].points == tuple((float(second), float(second)) for second in range(12))
    assert series["target tokens"].mean == pytest.approx(3.0)
    assert series["processor"].mean == pytest.approx(0.5)
    assert series["segments of a step"].mean == pytest.approx(3.0)
    assert series["memory"].highest == 111.0


def test_what_is_not_known_has_no_points() -> None:
    lacking = server(
        [Sample(at_s=BEGAN_S + second, values={"mt_queue_segments": 1.0}) for second in range(3)], duration_s=2
    )
    gap = server([sample(0.0), Sample(at_s=BEGAN_S + 1, values={}), sample(2.0), sample(3.0)], duration_s=3.0)
    idle = server([Sample(at_s=BEGAN_S + at_s, values=sample(1.0).values) for at_s in (0.0, 1.0)], duration_s=1.0)

    assert len(lacking["queue"].points) == 3
    assert lacking["memory"].points == lacking["processor"].points == ()
    assert lacking["memory"].highest is lacking["memory"].mean is None
    assert gap["target tokens"].points == ((2.0, 3.0), (3.0, 3.0))
    assert idle["segments of a step"].points == ()


def test_calls_are_counted_by_when_they_should_have_come() -> None:
    records = [answered(0.2, 5.0), answered(0.4, 0.1), record(Outcome.REJECTED, planned_s=BEGAN_S + 2.4)]

    series = calls(records, duration_s=2.5)

    assert series["offered"].points == ((0.5, 2.0), (1.5, 0.0), (2.25, 2.0))
    assert series["rejected"].points == ((0.5, 0.0), (1.5, 0.0), (2.25, 2.0))
    assert [(at_s, round(value)) for at_s, value in series["client p95"].points] == [(0.5, 5000)]
    assert [math.floor(at_s) for at_s, _ in series["generator lag p99"].points] == [0, 2]
    assert len(calls(records, duration_s=1800.0)["offered"].points) == 60  # no more than can be seen
