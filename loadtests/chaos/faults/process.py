"""All processes are stopped for a while, as a suspended or starved machine does it; the one that decodes is killed."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Final

from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import PATIENCE_S, Client, Reply
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.faults.told import FAILED_REQUESTS, require_all_told
from loadtests.chaos.limits import Limits
from loadtests.sampler import process_tree

_NUM_LATE: Final = 4
_UNDER_WAY_S: Final = 0.5
_MET_TIMEOUT_S: Final = 10.0
_LATE_DEADLINE_S: Final = 1.0
_DEADLINE_SLACK_S: Final = 1.0
_RESTARTS: Final = "mt_decoding_process_restarts_total"
_CATCH_UP_S: Final = 3.0
"""What a bystander may wait beyond the stop itself."""


def _stop(stage: Stage) -> str:
    """Stop all processes, let deadlines pass and new callers connect meanwhile, let it go on."""
    pids = process_tree(stage.venue.server.pid)
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
    _signal(pids, signal.SIGSTOP)
    try:
        for caller in callers:
            caller.start()
        time.sleep(stage.scale.stop_s)
    finally:
        _signal(pids, signal.SIGCONT)
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


def _kill(stage: Stage) -> str:
    """Kill the processes that decode while somebody is in a batch; all others are answered by new ones."""
    server = stage.venue.server
    decoding = process_tree(server.pid)[1:]
    stage.require(bool(decoding), "the server decodes in no process of its own")
    restarts_before, failed_before = stage.samples(_RESTARTS), stage.samples(FAILED_REQUESTS)
    victim: list[Reply] = []
    caller = threading.Thread(target=_call, args=(stage, victim, PATIENCE_S), name="victim")
    stage.venue.agent.let_hang("step", _UNDER_WAY_S)
    caller.start()
    stage.venue.agent.wait_until_met(_MET_TIMEOUT_S)
    _signal(decoding, signal.SIGKILL)
    caller.join()
    stage.bystanders.wait_for_answers()
    stage.hits.update(reply.status for reply in victim if reply.status != "OK")
    require_all_told(stage, failed_before)
    num_restarts = round(stage.samples(_RESTARTS) - restarts_before)
    stage.require(num_restarts == len(decoding), f"{len(decoding)} processes were killed, {num_restarts} started again")
    left = set(decoding) & set(process_tree(server.pid))
    stage.require(not left, f"the server has not noticed that {len(left)} processes have ended")
    return f"mt_decoding_process_restarts_total{num_restarts:+d}" if num_restarts else ""


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _call(stage: Stage, replies: list[Reply], timeout_s: float) -> None:
    question = stage.questions[0]
    with Client(stage.target) as client:
        replies.append(judged(client.translate(question.request, timeout_s=timeout_s), question))


def _long_steps(stage: Stage) -> float:
    """Return how many steps took longer than any should: the one in the middle of which the process was stopped."""
    samples = stage.venue.server.samples()
    return samples["mt_step_duration_seconds_count"] - samples['mt_step_duration_seconds_bucket{le="2.5"}']


DECODING_KILLED: Final = Fault(
    name="decoding-killed",
    summary="the process that decodes is killed (SIGKILL), as for want of memory, with somebody in its batches",
    run=_kill,
    statuses_in_batch=frozenset({"INTERNAL"}),
)


def stopping(stop_s: float) -> Fault:
    """Return the fault of a process that is stopped for so long."""
    return Fault(
        name="sigstop",
        summary="all processes are stopped (SIGSTOP) for 5 seconds and go on (SIGCONT)",
        run=_stop,
        limits=Limits(max_bystander_s=stop_s + _CATCH_UP_S, max_check_s=stop_s + _CATCH_UP_S),
    )
