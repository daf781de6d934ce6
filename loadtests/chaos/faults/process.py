"""The whole process is stopped for a while, as a suspended or starved machine does it."""

import os
import signal
import threading
import time
from typing import Final

from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client, Reply
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.limits import Limits

_NUM_LATE: Final = 4
_UNDER_WAY_S: Final = 0.5
_MET_TIMEOUT_S: Final = 10.0
_LATE_DEADLINE_S: Final = 1.0
_DEADLINE_SLACK_S: Final = 1.0
_CATCH_UP_S: Final = 3.0
"""What a bystander may wait beyond the stop itself."""


def _stop(stage: Stage) -> str:
    """Stop the process, let deadlines pass and new callers connect meanwhile, let it go on."""
    pid = stage.venue.server.pid
    late: list[Reply] = []
    patient: list[Reply] = []
    callers = [
        threading.Thread(target=_call, args=(stage, late, _LATE_DEADLINE_S), name=f"late-{number}")
        for number in range(_NUM_LATE)
    ]
    callers.append(threading.Thread(target=_call, args=(stage, patient, 30.0), name="patient"))
    long_before = _long_steps(stage)
    stage.venue.agent.let_hang("step", _UNDER_WAY_S)  # so that somebody is in the batch when it happens
    stage.venue.agent.wait_until_met(_MET_TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        for caller in callers:
            caller.start()
        time.sleep(stage.scale.stop_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    for caller in callers:
        caller.join()
    stage.hits.update(reply.status for reply in late)
    stage.require(
        set(stage.hits) == {"DEADLINE_EXCEEDED"},
        f"callers whose deadline passed meanwhile were told {dict(stage.hits)}",
    )
    latest_s = max(reply.latency_s for reply in late) - _LATE_DEADLINE_S
    stage.require(latest_s < _DEADLINE_SLACK_S, f"a caller heard {latest_s:.1f} s after the deadline that it passed")
    told = patient[0].status
    stage.require(told == "OK", f"a caller who came meanwhile and had the time was told {told}: {patient[0].message}")
    stage.bystanders.wait_for_answers()
    num_long = round(_long_steps(stage) - long_before)
    return f"mt_step_duration_seconds{{>2.5}}{num_long:+d}" if num_long else ""


def _call(stage: Stage, replies: list[Reply], timeout_s: float) -> None:
    question = stage.questions[0]
    with Client(stage.target) as client:
        replies.append(judged(client.translate(question.request, timeout_s=timeout_s), question))


def _long_steps(stage: Stage) -> float:
    """Return how many steps took longer than any should: the one in the middle of which the process was stopped."""
    samples = stage.venue.server.samples()
    return samples["mt_step_duration_seconds_count"] - samples['mt_step_duration_seconds_bucket{le="2.5"}']


def stopping(stop_s: float) -> Fault:
    """Return the fault of a process that is stopped for so long."""
    return Fault(
        name="sigstop",
        summary="the process is stopped (SIGSTOP) for 5 seconds and goes on (SIGCONT)",
        run=_stop,
        limits=Limits(max_bystander_s=stop_s + _CATCH_UP_S, max_check_s=stop_s + _CATCH_UP_S),
    )
