import dataclasses
from typing import Any

import pytest

from loadtests.stress.callers import Reply
from loadtests.stress.chaos.fault import Fault, Limits, Result

LIMITS = Limits(
    max_bystander_s=2.0,
    max_check_s=1.0,
    max_recovery_s=5.0,
    max_rss_growth_mb=64.0,
    max_thread_growth=16,
    max_file_growth=8,
)
FAULT = Fault(name="sigstop", summary="", run=lambda _: "")


def reply(status: str = "OK", *, latency_s: float = 0.1, message: str = "") -> Reply:
    return Reply(status=status, message=message, began_s=10.0, ended_s=10.0 + latency_s)


def result(**changed: Any) -> Result:
    held = Result(
        fault=FAULT,
        limits=LIMITS,
        hits={"DEADLINE_EXCEEDED": 4},
        seen="mt_segments_total{error}+3",
        translations=(reply(), reply()),
        checks=(reply(),),
        recovered_s=0.1,
        rss_growth_mb=1.0,
        began_s=10.0,
        elapsed_s=5.0,
    )
    return dataclasses.replace(held, **changed)


def test_a_fault_that_no_other_caller_notices_keeps_every_promise() -> None:
    assert result().summary.broken == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"broken": ("the server lied",)}, "sigstop: the server lied"),
        ({"translations": (reply(), reply("INTERNAL", message="why"))}, "bystanders are answered: INTERNAL: why"),
        ({"translations": (reply("WRONG_ANSWER"),)}, "bystanders are answered: WRONG_ANSWER"),
        ({"checks": (reply("UNAVAILABLE"),)}, "bystanders are answered: UNAVAILABLE"),
        ({"translations": ()}, "bystanders called: nothing is known"),
        ({"checks": ()}, "bystanders called: nothing is known"),
        ({"translations": (reply(latency_s=2.5),)}, "slowest translation of a bystander: 2.5 s, more than 2"),
        ({"checks": (reply(latency_s=1.5),)}, "slowest health check: 1.5 s, more than 1"),
        ({"seen": ""}, "metrics show the fault: none does"),
        ({"recovered_s": None}, "recovery: inf s, more than 5"),
        ({"recovered_s": 6.0}, "recovery: 6 s, more than 5"),
        ({"left": {"mt_queue_segments": 2.0}}, "no work is left: {'mt_queue_segments': 2.0}"),
        ({"rss_growth_mb": 65.0}, "growth of memory: 65 MB, more than 64"),
        ({"thread_growth": 17}, "more threads: 17, more than 16"),
        ({"file_growth": 9}, "more open files: 9, more than 8"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = result(**changed).summary.broken

    assert sentence in broken.sentence


def test_requests_in_the_batch_that_failed_may_be_told_so_and_nothing_else() -> None:
    replies = (reply(), reply("INTERNAL"), reply("UNAVAILABLE"))
    fault = dataclasses.replace(FAULT, statuses_in_batch=frozenset({"INTERNAL"}))

    found = result(fault=fault, translations=replies)

    assert [error.status for error in found.errors] == ["UNAVAILABLE"]


def test_what_is_rejected_before_it_is_counted_needs_no_metric() -> None:
    assert result(seen="", fault=dataclasses.replace(FAULT, is_counted=False)).summary.broken == []


def test_the_line_names_the_fault_and_what_came_of_it() -> None:
    assert result().summary.line.startswith("chaos fault=sigstop hit=DEADLINE_EXCEEDED:4 bystanders=3 ")
    assert result().summary.line.endswith(" seen=mt_segments_total{error}+3 verdict=held")
    assert " hit=nobody " in result(hits={}).summary.line
    assert " recovered_s=never " in result(recovered_s=None).summary.line


def test_the_json_counts_times_from_the_begin_of_the_fault() -> None:
    found = result(translations=(reply(latency_s=0.25),)).as_json()

    assert found["translations"] == [(0.0, 0.25)]
    assert found["verdict"] == "held"
