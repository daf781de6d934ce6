from typing import Any

import pytest

from loadtests.overload.verdict import Promises, Summary, broken_promises, summarize
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record

GOOD = [record(Outcome.ANSWERED, latency_s=1.5)] * 60 + [record(Outcome.REJECTED)] * 540


def judged(records: list[Any], *, rss_growth_mb: float = 1.0) -> tuple[Summary, list[str]]:
    summary = summarize(records, capacity_per_s=6.0, duration_s=10.0, rss_growth_mb=rss_growth_mb)
    return summary, broken_promises(summary, Promises())


def test_a_server_that_refuses_early_and_answers_in_time_keeps_every_promise() -> None:
    summary, broken = judged(GOOD)

    assert (summary.offered, summary.accepted, summary.rejected, summary.errors) == (600, 60, 540, 0)
    assert summary.goodput == pytest.approx(1.0)
    assert summary.rejected_p99_ms == pytest.approx(10.0)
    assert broken == []


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
    (broken,) = judged(records)[1]

    assert sentence in broken


def test_growth_is_judged_too() -> None:
    assert "grew by more than 128 MB" in judged(GOOD, rss_growth_mb=129.0)[1][0]


def test_a_generator_that_is_late_hides_no_waiting() -> None:
    late = record(Outcome.REJECTED, lag_s=0.05, latency_s=0.06)

    summary, _ = judged([late])

    assert summary.rejected_p99_ms == pytest.approx(60.0)
    assert summary.rejected_p99_from_send_ms == pytest.approx(10.0)
    assert summary.generator_lag_p99_ms == pytest.approx(50.0)
