from collections import Counter
from typing import Any

import pytest

from loadtests.stress.cancellations import Found, summarize
from loadtests.stress.soak.ledger import Entry, Notes
from loadtests.stress.verdict import Summary

ENTRY = Entry("r", "Translate", frozenset({"OK"}))
METRICS = {'mt_requests_total{method="Translate",status="OK"}': 1.0}


def notes(cancelled: int = 95, answered: int = 5, **changed: Any) -> Notes:
    ends = Counter({("cancels Translate", "CANCELLED"): cancelled, ("usual Translate", "OK"): answered})
    return Notes(ends=ends, entries=[ENTRY], **changed)


def summary(*, complaints: tuple[str, ...] = (), **changed: Any) -> Summary:
    good = {"notes": notes(), "memory_mb": [100.0] * 10, "left": {}, "metrics": METRICS, "elapsed_s": 10.0}
    return summarize(Found(**{**good, **changed}), [ENTRY], complaints, exit_code=0, max_rss_growth_mb=32.0)


@pytest.mark.parametrize("memory_mb", [[100.0] * 10, [100.0] * 60 + [150.0] + [100.0] * 60 + [150.0, 100.0]])
def test_a_run_that_leaves_nothing_behind_keeps_every_promise_whatever_one_sample_says(memory_mb: list[float]) -> None:
    assert summary(memory_mb=memory_mb).line == (
        "cancellations calls=100 rss_growth_mb=0.0 unanswered=0 cancelled=95 answered=5 left=0 rss_mb=100 "
        "calls_per_s=10 verdict=held"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"notes": notes(unanswered=["late"])}, "each request is answered: late"),
        ({"complaints": ("Traceback",)}, "no error that was not provoked: Traceback"),
        ({"left": {"mt_queue_segments": 1.0}}, "work is left: {'mt_queue_segments': 1.0}"),
        ({"memory_mb": [100.0, *range(100, 200, 10), 190.0]}, "grows: 90 MB, more than 32"),
        ({"notes": notes(answered=0)}, "both ends are met"),
        ({"notes": notes(cancelled=0)}, "both ends are met"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = summary(**changed).broken

    assert sentence in broken.sentence
