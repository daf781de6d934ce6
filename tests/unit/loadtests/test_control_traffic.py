import time
from contextlib import nullcontext

import pytest

from loadtests.generator.calls import Reply
from loadtests.scenarios.control_traffic import Caller, ControlTraffic


@pytest.mark.parametrize(
    ("is_scheduled", "status", "latencies_s"),
    [(True, "OK", {1.0, 0.75, 0.5, 0.25}), (True, "UNAVAILABLE", {1.0}), (False, "OK", {1.0})],
)
def test_stall_counts_for_every_scheduled_call_that_it_delays(
    monkeypatch: pytest.MonkeyPatch, is_scheduled: bool, status: str, latencies_s: set[float]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def stall(_: object) -> Reply:
        nonlocal now_s
        now_s += 1.0
        return Reply(status=status, began_s=now_s - 1.0, ended_s=now_s)

    caller = Caller(connect=nullcontext, calls=[stall], each_s=0.25, is_scheduled=is_scheduled)
    with ControlTraffic([caller]) as traffic:
        traffic.wait_for_answers()

    assert {reply.latency_s for reply in caller.replies} == latencies_s
