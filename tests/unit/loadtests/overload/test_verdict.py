import json
from typing import Any

import numpy as np
import pytest

from loadtests.overload.__main__ import texts_per_call
from loadtests.overload.verdict import Overload, as_json, broken_promises, line, picture
from loadtests.records import summarize
from loadtests.texts import Profile
from loadtests.wire import Method, Outcome
from loadtests.workload import Mix, Workload
from tests.unit.loadtests.fake_calls import record

GOOD = [record(Outcome.ANSWERED, latency_s=1.5)] * 60 + [record(Outcome.REJECTED)] * 540
MIXED = [record(kind, planned_s=100.0 + second) for second in range(3) for kind in Outcome]


def overload(records: list[Any], *, rss_growth_mb: float = 1.0, began_s: float = 0.0) -> Overload:
    return Overload(
        began_s=began_s,
        records=records,
        summary=summarize(records, duration_s=10.0),
        capacity_per_s=6.0,
        memory_mb=[(0.0, 100.0), (5.0, 100.0 + rss_growth_mb), (10.0, 100.0)],
        settings={"deadline_s": 2.0},
    )


def broken(records: list[Any], *, rss_growth_mb: float = 1.0) -> list[str]:
    return broken_promises(overload(records, rss_growth_mb=rss_growth_mb), max_rss_growth_mb=128.0)


def test_a_server_that_rejects_early_and_answers_in_time_keeps_every_promise() -> None:
    found = overload(GOOD)

    assert found.goodput == pytest.approx(1.0)
    assert found.rss_growth_mb == 1.0
    assert broken(GOOD) == []
    assert broken(GOOD, rss_growth_mb=129.0) == ["the server grew by more than 128 MB"]


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (GOOD[:60], "nothing was rejected"),
        ([*GOOD, *[record(Outcome.REJECTED, latency_s=0.06)] * 6], "more than 50 ms"),
        ([*GOOD, record(Outcome.LATE)], "1 accepted calls were not answered"),
        ([*GOOD, record(Outcome.ERROR)], "1 calls failed otherwise"),
        (GOOD[40:], "of the capacity was answered"),
        ([*GOOD, *[record(Outcome.ANSWERED, lag_s=0.03)] * 7], "the generator itself"),
    ],
)
def test_each_promise_can_be_broken(records: list[Any], sentence: str) -> None:
    (told,) = broken(records)

    assert sentence in told


def test_a_generator_that_is_late_hides_no_waiting() -> None:
    found = overload([record(Outcome.REJECTED, lag_s=0.05, latency_s=0.06)])

    rejected = found.summary.rejected_latency
    assert rejected is not None
    assert rejected.p99_ms == pytest.approx(60.0)
    assert found.rejected_p99_from_send_ms == pytest.approx(10.0)


def test_the_line_has_the_promises_first_and_none_for_what_is_not_known() -> None:
    start = "overload rejected_p99_ms=10.0 accepted_late=3 errors_other=3 rss_growth_mb=1.0 offered=15 accepted=6 "

    assert line(overload(MIXED, began_s=100.0)).startswith(start)
    assert "rejected_p99_ms=none" in line(overload(MIXED[:1]))


def test_an_overload_is_kept_as_json_and_drawn() -> None:
    found = overload(MIXED, began_s=100.0)

    kept = json.loads(json.dumps(as_json(found, ["one"]), allow_nan=False))
    rates, latencies, _ = picture(found).axes

    assert kept["calls"][-1] == [2.0, 0.0, 0.01, "ERROR"]
    assert kept["broken_promises"] == ["one"]
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in rates.lines}
    assert (drawn["offered"], drawn["rejected"]) == ([5, 5, 5], [1, 1, 1])
    assert latencies.get_yscale() == "log"


@pytest.mark.parametrize(("texts_per_s", "texts"), [(100.0, 8), (3200.0, 8), (3201.0, 9), (8000.0, 20), (1e9, 128)])
def test_calls_grow_when_there_would_be_too_many(texts_per_s: float, texts: int) -> None:
    assert texts_per_call(Workload(texts_per_call=8), texts_per_s) == texts


@pytest.mark.parametrize(
    "workload", [Workload(profile=Profile.DOCUMENT), Workload(methods=Mix(((Method.LIST_MODELS, 1.0),)))]
)
def test_calls_that_take_no_more_texts_keep_their_size(workload: Workload) -> None:
    assert texts_per_call(workload, 1e6) == 1
