from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.callers import Reply
from loadtests.stress.chaos.fault import Fault, Result
from loadtests.stress.chaos.scenario import FAULTS, chosen, summarize

FAULT = Fault(name="sigstop", summary="", inject=lambda _: None, told={"DEADLINE_EXCEEDED"}, metric="mt_missed")
UNCOUNTED = {"fault": replace(FAULT, metric=""), "num_seen": 0}
IN_BATCH = {"fault": replace(FAULT, told={"INTERNAL"}, hits_batch=True), "hits": Counter(INTERNAL=1)}
DELAYING = {"fault": replace(FAULT, limits={"slowest_s": 3.0}, delays={"slowest_s"}), "seconds": 8.0}
MEASURED = {"recovered_s": 0.1, "rss_growth_mb": 1.0, "threads": 0, "files": 0}


def reply(status: str = "OK", *, latency_s: float = 0.1, message: str = "") -> Reply:
    return Reply(status=status, message=message, began_s=10.0, ended_s=10.0 + latency_s)


def result(**changed: Any) -> Result:
    held = {"fault": FAULT, "hits": Counter(DEADLINE_EXCEEDED=4), "num_seen": 3, "measured": MEASURED, "began_s": 10.0}
    return Result(**{**held, "translations": (reply(), reply()), "checks": (reply(),), **changed})


def test_a_fault_that_no_other_caller_notices_keeps_every_promise() -> None:
    assert result().summary.broken == result(**UNCOUNTED).summary.broken == []
    assert result(**IN_BATCH, translations=(reply(), reply("INTERNAL"))).summary.broken == []
    assert result(**DELAYING, translations=(reply(latency_s=10.5),)).summary.broken == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"broken": ["the server lied"]}, "sigstop: the server lied"),
        ({"hits": Counter()}, "callers who are hit are told: they were told {}"),
        ({"hits": Counter(UNKNOWN=1)}, "callers who are hit are told: they were told {'UNKNOWN': 1}"),
        ({"translations": (reply(), reply("INTERNAL", message="why"))}, "bystanders are answered: INTERNAL: why"),
        ({**IN_BATCH, "translations": (reply("UNAVAILABLE"),)}, "bystanders are answered: UNAVAILABLE"),
        ({**IN_BATCH, "checks": (reply("INTERNAL"),)}, "bystanders are answered: INTERNAL"),
        ({"translations": ()}, "slowest_s: never seen"),
        ({"checks": ()}, "health_s: never seen"),
        ({"translations": (reply(latency_s=2.5),)}, "slowest_s: 2.5, more than 2"),
        ({**DELAYING, "translations": (reply(latency_s=12),)}, "slowest_s: 12, more than 11"),
        ({**DELAYING, "checks": (reply(latency_s=1.5),)}, "health_s: 1.5, more than 1"),
        ({"num_seen": 0}, "metrics show the fault: mt_missed has not grown"),
        ({"measured": {**MEASURED, "recovered_s": 6.0}}, "recovered_s: 6, more than 5"),
        ({"left": {"mt_queue_segments": 2.0}}, "no work is left: {'mt_queue_segments': 2.0}"),
        ({"measured": {**MEASURED, "rss_growth_mb": 65.0}}, "rss_growth_mb: 65, more than 64"),
        ({"measured": {**MEASURED, "threads": 17}}, "threads: 17, more than 16"),
        ({"measured": {**MEASURED, "files": 9}}, "files: 9, more than 8"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = result(**changed).summary.broken

    assert sentence in broken.sentence


def test_the_line_and_the_json_tell_of_the_fault_and_what_came_of_it() -> None:
    assert result().summary.line.startswith("chaos fault=sigstop hit=DEADLINE_EXCEEDED:4 bystanders=3 ")
    assert result().summary.line.endswith(" seen=mt_missed+3 verdict=held")
    assert " hit=nobody " in result(hits=Counter()).summary.line
    assert " recovered_s=never " in result(measured={}).summary.line
    assert result(translations=(reply(latency_s=0.25),)).as_json()["translations"] == [(0.0, 0.25)]


def test_faults_are_declared_once_with_growing_amounts_and_what_needs_a_server_of_its_own_comes_last() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 22
    assert all(fault.summary for fault in FAULTS)
    assert all(short <= full for fault in FAULTS for short, full in (fault.amounts, fault.seconds))
    assert [fault.name for fault in FAULTS if fault.environment] == [FAULTS[-1].name]
    assert [fault.name for fault in chosen("sigstop,step-raises")] == ["step-raises", "sigstop"]


@pytest.mark.parametrize("compiler", ["/bin/cc", None])
def test_the_list_has_every_fault_but_the_clocks_without_a_compiler(
    compiler: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: compiler)
    assert main(["chaos", "--list"]) == 0
    expected = [fault.name for fault in FAULTS if compiler or fault.name != "clock-jump"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == expected


@pytest.mark.parametrize(
    ("results", "exit_codes", "expected"),
    [
        ([result(), result()], [0], "chaos faults=2 held=2 verdict=held"),
        ([result(), result(measured={})], [0], "chaos faults=2 held=1 verdict=broken"),
        ([result()], [0, -7], "chaos faults=1 held=1 verdict=broken"),
        ([result()], [None], "chaos faults=1 held=1 verdict=broken"),
        ([], [], "chaos faults=0 held=0 verdict=broken"),
    ],
)
def test_the_last_line_is_the_verdict(results: list[Result], exit_codes: list[int | None], expected: str) -> None:
    assert summarize(results, exit_codes).line == expected
