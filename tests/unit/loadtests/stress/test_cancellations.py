from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtests.stress.cancellations import Found, summarize
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import AccessLog, Entry, Logged
from loadtests.stress.verdict import Summary

LOG = AccessLog(logged=(Logged(request_id="r", method="Translate", status="OK"),), complaints=())
METRICS = {'mt_requests_total{method="Translate",status="OK"}': 1.0}
GOOD: dict[str, Any] = {"memory_mb": [100.0] * 10, "elapsed_s": 10.0, "metrics": METRICS}


def notes(cancelled: int = 95, answered: int = 5, **changed: Any) -> Notes:
    ends = Counter({("cancels Translate", "CANCELLED"): cancelled, ("usual Translate", "OK"): answered})
    entry = Entry(request_id="r", method="Translate", possible=frozenset({"OK"}))
    return Notes(ends=ends, entries=[entry], **changed)


def summary(*, log: AccessLog = LOG, **changed: Any) -> Summary:
    found = Found(**{**GOOD, "notes": notes(), **changed})
    return summarize(found, log, exit_code=0, max_rss_growth_mb=32.0)


def test_a_run_that_leaves_nothing_behind_keeps_every_promise() -> None:
    assert summary().line == (
        "cancellations calls=100 rss_growth_mb=0.0 unanswered=0 cancelled=95 answered=5 left=0 rss_mb=100 "
        "calls_per_s=10 verdict=held"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"notes": notes(unanswered=["late"])}, "each request is answered: late"),
        ({"notes": notes(errors=["INTERNAL"])}, "no error that was not provoked: INTERNAL"),
        ({"notes": notes(wrong=["no hypothesis"])}, "each answer is right: no hypothesis"),
        ({"metrics": {}}, "clients and server know the same calls"),
        ({"log": replace(LOG, complaints=("Traceback",))}, "no error that was not provoked: Traceback"),
        ({"left": {"mt_queue_segments": 1.0}}, "work is left: {'mt_queue_segments': 1.0}"),
        ({"memory_mb": [100.0, *range(100, 200, 10), 190.0]}, "grows: 90 MB, more than 32"),
        ({"notes": notes(answered=0)}, "both ends are met"),
        ({"notes": notes(cancelled=0)}, "both ends are met"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = summary(**changed).broken

    assert sentence in broken.sentence


def test_one_high_sample_is_no_growth() -> None:
    assert Found(**{**GOOD, "memory_mb": [100.0] * 60 + [150.0] + [100.0] * 60 + [150.0]}).rss_growth_mb == 0
