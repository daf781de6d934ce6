import dataclasses
from typing import Any

import pytest

from loadtests.chaos.calls import Reply
from loadtests.chaos.limits import Limits
from loadtests.chaos.verdict import TrialResult, broken_promises, last_line, line, record

LIMITS = Limits(
    max_bystander_s=2.0,
    max_check_s=1.0,
    max_recovery_s=5.0,
    max_rss_growth_mb=64.0,
    max_thread_growth=16,
    max_file_growth=8,
)


def reply(status: str = "OK", *, latency_s: float = 0.1, message: str = "") -> Reply:
    return Reply(status=status, message=message, began_s=10.0, ended_s=10.0 + latency_s)


def result(**changed: Any) -> TrialResult:
    held = TrialResult(
        fault="sigstop",
        limits=LIMITS,
        hits={"DEADLINE_EXCEEDED": 4},
        seen="mt_segments_total{error}+3",
        translations=(reply(), reply()),
        checks=(reply(),),
        recovered_s=0.1,
        rss_growth_mb=1.0,
        thread_growth=0,
        file_growth=0,
        began_s=10.0,
        elapsed_s=5.0,
    )
    return dataclasses.replace(held, **changed)


def test_a_fault_that_nobody_else_notices_keeps_every_promise() -> None:
    assert broken_promises(result()) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"broken": ("the server lied",)}, "the server lied"),
        ({"translations": (reply(), reply("INTERNAL", message="why"))}, "1 bystanders failed, the first with INTERNAL"),
        ({"translations": (reply("WRONG_ANSWER"),)}, "1 bystanders failed, the first with WRONG_ANSWER"),
        ({"checks": (reply("UNAVAILABLE"),)}, "1 bystanders failed, the first with UNAVAILABLE"),
        ({"translations": ()}, "no bystander called"),
        ({"checks": ()}, "no bystander called"),
        ({"translations": (reply(latency_s=2.5),)}, "a bystander waited 2.50 s, more than 2"),
        ({"checks": (reply(latency_s=1.5),)}, "the health took 1.50 s to tell, more than 1"),
        ({"seen": ""}, "no metric shows the fault"),
        ({"recovered_s": None}, "the server did not recover"),
        ({"recovered_s": 6.0}, "the server recovered after 6.0 s, more than 5"),
        ({"left": {"mt_queue_segments": 2.0}}, "work is left: {'mt_queue_segments': 2.0}"),
        ({"rss_growth_mb": 65.0}, "the server grew by 65.0 MB, more than 64"),
        ({"thread_growth": 17}, "17 more threads, more than 16"),
        ({"file_growth": 9}, "9 more open files, more than 8"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = broken_promises(result(**changed))

    assert sentence in broken


def test_who_was_in_the_batch_that_failed_may_be_told_so_and_nothing_else() -> None:
    replies = (reply(), reply("INTERNAL"), reply("UNAVAILABLE"))

    found = result(translations=replies, statuses_in_batch=frozenset({"INTERNAL"}))

    assert [error.status for error in found.errors] == ["UNAVAILABLE"]


def test_what_is_refused_before_it_is_counted_needs_no_metric() -> None:
    assert broken_promises(result(seen="", is_counted=False)) == []


def test_the_line_names_the_fault_and_what_came_of_it() -> None:
    assert line(result()).startswith("chaos fault=sigstop status=held hit=DEADLINE_EXCEEDED:4 bystanders=3 ")
    assert " status=broken hit=nobody " in line(result(hits={}, recovered_s=None))
    assert " recovered_s=never " in line(result(recovered_s=None))


@pytest.mark.parametrize(
    ("results", "exit_codes", "expected"),
    [
        ([result(), result()], [0], "chaos faults=2 held=2 verdict=held"),
        ([result(), result(recovered_s=None)], [0], "chaos faults=2 held=1 verdict=broken"),
        ([result()], [0, -7], "chaos faults=1 held=1 verdict=broken"),
        ([], [], "chaos faults=0 held=0 verdict=broken"),
    ],
)
def test_the_last_line_is_the_verdict(results: list[TrialResult], exit_codes: list[int], expected: str) -> None:
    assert last_line(results, exit_codes=exit_codes) == expected


def test_a_record_counts_times_from_the_begin_of_the_fault() -> None:
    found = record(result(translations=(reply(latency_s=0.25),)))

    assert found["translations"] == [(0.0, 0.25)]
    assert found["broken"] == []
