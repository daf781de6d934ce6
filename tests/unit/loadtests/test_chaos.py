"""The verdict on a fault."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.generator.calls import Reply
from loadtests.scenarios.chaos.fault import LIMITS, Fault, FaultRun
from loadtests.scenarios.chaos.scenario import report_of

IN_BATCH = {"expected": {"INTERNAL"}, "hits_batch": True}
DELAYING = {"limits": {"slowest_s": 3.0}, "seconds": (8.0, 8.0), "delays": {"slowest_s"}}


def reply(status: str = "OK", latency_s: float = 0.1) -> Reply:
    return Reply(status=status, ended_s=latency_s)


def injected(
    *, fault: Any = None, translation: Reply | None = None, probe: Reply | None = None, **changed: Any
) -> FaultRun:
    expected = {"expected": {"DEADLINE_EXCEEDED"}, **(fault or {})}
    declared = Fault(name="sigstop", summary="", inject=lambda _: None, metric="dragoman_x", **expected)
    process = SimpleNamespace(target="127.0.0.1:1")
    server: Any = SimpleNamespace(process=process, known_requests=[], log=Path("/dev/null"))
    run = FaultRun(declared, server, "short", before={})
    run.status_counts.update(expected["expected"])
    run.num_seen = 3
    run.measured |= {"recovered_s": 0.1, "rss_growth_mb": 1.0, "threads": 0, "files": 0}
    run.control.translations.append(translation or reply())
    run.control.probes.append(probe or reply())
    for name, value in changed.items():
        setattr(run, name, value)
    return run


@pytest.mark.parametrize(
    ("run", "failed"),
    [
        (injected(), []),
        (injected(fault=IN_BATCH, translation=reply("INTERNAL")), []),
        (injected(fault=DELAYING, translation=reply(latency_s=10.5)), []),
        (injected(fault=DELAYING, translation=reply(latency_s=11.5)), ["slowest_s"]),
        (injected(fault=DELAYING, probe=reply(latency_s=1.5)), ["health_s"]),
        (injected(translation=reply("INTERNAL")), ["control traffic is answered"]),
        (injected(fault=IN_BATCH, probe=reply("INTERNAL")), ["control traffic is answered"]),
        (injected(status_counts=Counter()), ["affected callers get the expected status"]),
        (injected(status_counts=Counter(UNKNOWN=1)), ["affected callers get the expected status"]),
        (injected(num_seen=0), ["metrics show the fault"]),
        (injected(left={"dragoman_queue_segments": 2.0}), ["no requests leaked"]),
        (injected(broken=["anything"]), ["sigstop"]),
        (injected(measured={}), [name for name in LIMITS if name not in {"slowest_s", "health_s"}]),
    ],
)
def test_each_check_can_fail_alone(run: FaultRun, failed: list[str]) -> None:
    assert [check.name for check in run.report.failed] == failed
    assert bool(report_of([run], [0]).failures) == bool(failed)


@pytest.mark.parametrize("exit_codes", [[0, -7], [None]])
def test_every_server_must_exit_with_0(exit_codes: list[int | None]) -> None:
    assert [check.name for check in report_of([injected()], exit_codes).failed] == ["servers exit with 0"]
