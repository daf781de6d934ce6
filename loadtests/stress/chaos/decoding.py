"""Faults of decoding: runs that raise, that ONNX Runtime breaks off or that hang; processes stopped and killed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import psutil

from loadtests.sampler import process_tree
from loadtests.stress.callers import Client, Reply
from loadtests.stress.chaos.fault import Fault, Limits, Stage, fault
from loadtests.stress.chaos.server import NUM_DECODING_THREADS, Where
from loadtests.stress.server import poll

_FAILED_REQUESTS: Final = 'mt_requests_total{method="Translate",status="INTERNAL"}'
_FAILED_SEGMENTS: Final = 'mt_segments_total{outcome="error"}'
"""A text may be several segments, if it is too long for the model; so more of them than requests may fail."""

_DEADLINES_PASSED: Final = 'mt_requests_total{method="Translate",status="DEADLINE_EXCEEDED"}'
_RESTARTS: Final = "mt_decoding_process_restarts_total"
_STEPS: Final = "mt_step_duration_seconds_count"
_SHORT_STEPS: Final = 'mt_step_duration_seconds_bucket{le="2.5"}'
_LATE: Final = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
"""What callers with a short deadline are told; the latter: what waits would make them late."""

_IN_BATCH: Final = frozenset({"INTERNAL"})
_WHERE: Final[tuple[Where, ...]] = ("encoder", "step")
_NUM_CALLERS: Final = 4
_TOLD_TIMEOUT_S: Final = 10.0
_HANG_MARGIN_S: Final = 0.5
_SHORT_DEADLINE_S: Final = 0.3
_DEADLINE_SLACK_S: Final = 0.5
_ENQUEUED_S: Final = 0.1
"""A request that is given to the thread in the moment in which its step begins waits with those that are in it."""

_DISPATCH_S: Final = 2.0
_IN_BATCH_S: Final = 0.5
_STOPPED_DEADLINE_S: Final = 1.0
_STOPPED_SLACK_S: Final = 1.0
_PATIENT_S: Final = 30.0
_CATCH_UP_S: Final = 3.0


def _fail_runs(stage: Stage, *, kind: Literal["raise", "cut-off"]) -> str:
    """Let runs fail one after the other, while others are decoded; requests in the batch are told INTERNAL."""
    own: list[Reply] = []
    for _ in range(stage.amount):
        for where in _WHERE:
            stage.server.injector.arm(kind, where)
            with ThreadPoolExecutor(_NUM_CALLERS) as pool:
                own += pool.map(stage.ask, range(_NUM_CALLERS))
            stage.server.injector.wait_until_met()
    stage.bystanders.wait_for_answers()
    stage.hits.update(reply.status for reply in own if reply.status != "OK")
    num_failed = _require_all_told(stage)
    num_segments = stage.growth(_FAILED_SEGMENTS)
    stage.require(num_segments >= num_failed, f"{num_failed} requests failed, but only {num_segments} segments")
    return f"mt_segments_total{{error}}{num_segments:+d}"


@fault(
    "a decoding step of every thread hangs for seconds",
    seconds=(2.0, 8.0),
    limits=lambda hang_s: Limits(max_bystander_s=hang_s + _DISPATCH_S),
)
def stalled_step(stage: Stage) -> str:
    """Let the steps of one decoding thread hang, then those of all.

    In the meantime new requests are served by a thread that is free; if there is none, a caller whose deadline passes
    is told so at its deadline.
    """
    hang_s = stage.seconds
    stage.server.injector.hang_steps(hang_s)
    time.sleep(_ENQUEUED_S)
    others = _ask_for(stage, hang_s - _HANG_MARGIN_S, timeout_s=hang_s)
    told = {reply.status for reply in others}
    stage.require(told == {"OK"}, f"while one of {NUM_DECODING_THREADS} threads hung, callers were told {told}")
    slowest_s = max(reply.latency_s for reply in others)
    stage.require(slowest_s < hang_s / 2, f"while one thread hung, a caller of another waited {slowest_s:.2f} s")
    stage.bystanders.wait_for_answers()

    stage.server.injector.hang_steps(hang_s, count=NUM_DECODING_THREADS)
    hurried = _ask_for(stage, hang_s - _HANG_MARGIN_S, timeout_s=_SHORT_DEADLINE_S)
    stage.hits.update(reply.status for reply in hurried)
    latest_s = max(reply.latency_s for reply in hurried) - _SHORT_DEADLINE_S
    stage.require(latest_s < _DEADLINE_SLACK_S, f"a caller was told {latest_s:.2f} s after its deadline that it passed")
    stage.require(set(stage.hits) <= _LATE, f"callers with a short deadline were told {dict(stage.hits)}")
    stage.require(stage.hits["DEADLINE_EXCEEDED"] > 0, "no deadline passed while every step hung")
    stage.bystanders.wait_for_answers()
    num_missed = stage.growth(_DEADLINES_PASSED)
    return f"mt_requests_total{{DEADLINE_EXCEEDED}}{num_missed:+d}" if num_missed else ""


@fault(
    "all processes are stopped (SIGSTOP) for 5 seconds and go on (SIGCONT)",
    seconds=(5.0, 5.0),
    limits=lambda stop_s: Limits(max_bystander_s=stop_s + _CATCH_UP_S, max_check_s=stop_s + _CATCH_UP_S),
)
def sigstop(stage: Stage) -> str:
    """Stop all processes, let deadlines pass and new callers connect in the meantime, let them go on."""
    processes = [psutil.Process(pid) for pid in process_tree(stage.server.process.pid)]
    stage.server.injector.hang_steps(_IN_BATCH_S)  # so that requests are in the batch when it happens
    with ThreadPoolExecutor(_NUM_CALLERS + 1) as pool:
        for process in processes:
            process.suspend()
        try:
            late = [pool.submit(stage.ask, timeout_s=_STOPPED_DEADLINE_S) for _ in range(_NUM_CALLERS)]
            patient = pool.submit(stage.ask, timeout_s=_PATIENT_S)
            time.sleep(stage.seconds)
        finally:
            for process in processes:
                process.resume()
    stage.hits.update(one.result().status for one in late)
    told = set(stage.hits)
    stage.require(told == {"DEADLINE_EXCEEDED"}, f"callers whose deadline passed during the stop were told {told}")
    latest_s = max(one.result().latency_s for one in late) - _STOPPED_DEADLINE_S
    stage.require(latest_s < _STOPPED_SLACK_S, f"a caller was told {latest_s:.1f} s after its deadline that it passed")
    reply = patient.result()
    stage.require(
        reply.status == "OK", f"a caller who came during the stop, with time, was told {reply.status}: {reply.message}"
    )
    stage.bystanders.wait_for_answers()
    num_long = stage.growth(_STEPS) - stage.growth(_SHORT_STEPS)  # longer than any should be: it was stopped in one
    return f"mt_step_duration_seconds{{>2.5}}{num_long:+d}" if num_long else ""


@fault(
    "the process that decodes is killed (SIGKILL), as when memory runs out, in the middle of a batch",
    statuses_in_batch=_IN_BATCH,
)
def decoding_killed(stage: Stage) -> str:
    """Kill the processes that decode while requests are in a batch; all others are answered by new ones."""
    server = stage.server.process
    decoding = process_tree(server.pid)[1:]
    stage.require(bool(decoding), "the server decodes in no process of its own")
    own: list[Reply] = []
    caller = threading.Thread(target=lambda: own.append(stage.ask()), name="in-batch")
    stage.server.injector.arm("hang", "step", seconds=_IN_BATCH_S)
    caller.start()
    stage.server.injector.wait_until_met()
    for pid in decoding:
        psutil.Process(pid).kill()
    caller.join()
    stage.bystanders.wait_for_answers()
    stage.hits.update(reply.status for reply in own if reply.status != "OK")
    _require_all_told(stage)
    num_restarts = stage.growth(_RESTARTS)
    stage.require(num_restarts == len(decoding), f"{len(decoding)} processes were killed, {num_restarts} started again")
    left = set(decoding) & set(process_tree(server.pid))
    stage.require(not left, f"the server has not noticed that {len(left)} processes have ended")
    return f"{_RESTARTS}{num_restarts:+d}" if num_restarts else ""


def _require_all_told(stage: Stage) -> int:
    """Require that as many callers were told INTERNAL as requests have failed, some at least; return how many."""

    def told_and_failed() -> tuple[int, int]:
        others = sum(reply.status == "INTERNAL" for reply in stage.bystanders.translations)
        return stage.hits["INTERNAL"] + others, stage.growth(_FAILED_REQUESTS)

    # a reply may be on its way when it is counted, or counted when it has arrived
    num_told, num_failed = poll(told_and_failed, lambda pair: pair[0] == pair[1], timeout_s=_TOLD_TIMEOUT_S)
    stage.require(set(stage.hits) <= {"INTERNAL"}, f"callers in a batch that failed were told {dict(stage.hits)}")
    stage.require(num_told > 0, "no caller was told of the failure")
    stage.require(num_told == num_failed, f"{num_told} callers were told INTERNAL, but {num_failed} requests failed")
    return num_failed


def _ask_for(stage: Stage, seconds: float, *, timeout_s: float) -> list[Reply]:
    """Make one call after the other for so long, at least one."""
    until_s = time.monotonic() + seconds
    replies: list[Reply] = []
    with Client(stage.target) as client:
        while not replies or time.monotonic() < until_s:
            replies.append(stage.ask(client=client, timeout_s=timeout_s))
    return replies


step_raises: Final = Fault(
    name="step-raises",
    summary="an encoder run or a decoding step raises an error of Python's, its caches half written",
    run=partial(_fail_runs, kind="raise"),
    amounts=(2, 10),
    statuses_in_batch=_IN_BATCH,
)
onnx_runtime: Final = replace(
    step_raises,
    name="onnx-runtime",
    summary="ONNX Runtime itself fails in the middle of an encoder run or a decoding step",
    run=partial(_fail_runs, kind="cut-off"),
)
FAULTS: Final = (step_raises, onnx_runtime, stalled_step, sigstop, decoding_killed)
