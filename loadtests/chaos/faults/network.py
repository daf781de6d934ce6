"""Runs of the network that raise, that ONNX Runtime breaks off, that hang."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from loadtests.chaos.agent import Agent, Where
from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client, Reply
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.faults.told import FAILED_REQUESTS, require_all_told
from loadtests.chaos.limits import Limits
from loadtests.chaos.venue import NUM_DECODING_THREADS

_FAILED_SEGMENTS: Final = 'mt_segments_total{outcome="error"}'
"""A text may be several segments, if it is too long for the model; so more of them than requests may fail."""

_WHERE: Final[tuple[Where, ...]] = ("encoder", "step")
_MET_TIMEOUT_S: Final = 10.0
_NUM_VICTIMS: Final = 4
_DEADLINES_PASSED: Final = 'mt_requests_total{method="Translate",status="DEADLINE_EXCEEDED"}'
_HANG_MARGIN_S: Final = 0.5
_SHORT_DEADLINE_S: Final = 0.3
_DEADLINE_SLACK_S: Final = 0.5
_HANDED_OVER_S: Final = 0.1
"""Whoever was handed to the thread in the very moment in which its step began waits with those who are in it."""
_DISPATCH_S: Final = 2.0
"""What a bystander may wait beyond the hang itself."""


def _fail_runs(arm: Callable[[Agent, Where], None], stage: Stage) -> str:
    """Let runs fail one after the other, while others are decoded; whoever was in the batch is told INTERNAL."""
    requests_before, segments_before = stage.samples(FAILED_REQUESTS), stage.samples(_FAILED_SEGMENTS)
    own: list[Reply] = []
    for _ in range(stage.scale.num_failing_runs):
        for where in _WHERE:
            arm(stage.venue.agent, where)
            own += _ask_at_once(stage)
            stage.venue.agent.wait_until_met(_MET_TIMEOUT_S)
    stage.bystanders.wait_for_answers()
    stage.hits.update(reply.status for reply in own if reply.status != "OK")
    num_failed = require_all_told(stage, requests_before)
    num_segments = round(stage.samples(_FAILED_SEGMENTS) - segments_before)
    stage.require(num_segments >= num_failed, f"{num_failed} requests failed, but only {num_segments} segments")
    return f"mt_segments_total{{error}}{num_segments:+d}"


def _ask_at_once(stage: Stage) -> list[Reply]:
    """Make a few calls of one sentence at the same time."""

    def ask(number: int) -> Reply:
        question = stage.questions[number % len(stage.questions)]
        with Client(stage.target) as client:
            return judged(client.translate(question.request), question)

    with ThreadPoolExecutor(_NUM_VICTIMS) as pool:
        return list(pool.map(ask, range(_NUM_VICTIMS)))


def _hang(stage: Stage) -> str:
    """Let the steps of one decoding thread hang, then those of all.

    Meanwhile whoever comes is served by a thread that is free; if there is none, a caller whose deadline passes is told
    so at its deadline.
    """
    missed_before = stage.samples(_DEADLINES_PASSED)
    hang_s = stage.scale.hang_s
    _let_hang(stage, num_threads=1)
    time.sleep(_HANDED_OVER_S)
    others = _ask_for(stage, hang_s - _HANG_MARGIN_S, timeout_s=hang_s)
    told = {reply.status for reply in others}
    stage.require(told == {"OK"}, f"while one of {NUM_DECODING_THREADS} threads hung, callers were told {told}")
    slowest_s = max((reply.latency_s for reply in others), default=0.0)
    stage.require(slowest_s < hang_s / 2, f"while one thread hung, a caller of another waited {slowest_s:.2f} s")
    stage.bystanders.wait_for_answers()

    _let_hang(stage, num_threads=NUM_DECODING_THREADS)
    hurried = _ask_for(stage, hang_s - _HANG_MARGIN_S, timeout_s=_SHORT_DEADLINE_S)
    stage.hits.update(reply.status for reply in hurried)
    latest_s = max(reply.latency_s for reply in hurried) - _SHORT_DEADLINE_S
    stage.require(latest_s < _DEADLINE_SLACK_S, f"a caller heard {latest_s:.2f} s after the deadline that it passed")
    allowed = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}  # the latter: what waits would make it late
    stage.require(set(stage.hits) <= allowed, f"callers with a short deadline were told {dict(stage.hits)}")
    stage.require(stage.hits["DEADLINE_EXCEEDED"] > 0, "no deadline passed while every step hung")
    stage.bystanders.wait_for_answers()
    missed = stage.samples(_DEADLINES_PASSED) - missed_before
    return f"mt_requests_total{{DEADLINE_EXCEEDED}}{missed:+.0f}" if missed else ""


def _let_hang(stage: Stage, *, num_threads: int) -> None:
    """Return once so many threads hang."""
    for _ in range(num_threads):
        stage.venue.agent.let_hang("step", stage.scale.hang_s)
    stage.venue.agent.wait_until_met(_MET_TIMEOUT_S)


def _ask_for(stage: Stage, seconds: float, *, timeout_s: float) -> list[Reply]:
    """Make one call after the other for so long."""
    until_s = time.monotonic() + seconds
    replies: list[Reply] = []
    with Client(stage.target) as client:
        while not replies or time.monotonic() < until_s:
            question = stage.questions[0]
            replies.append(judged(client.translate(question.request, timeout_s=timeout_s), question))
    return replies


STEP_RAISES: Final = Fault(
    name="step-raises",
    summary="an encoder run or a decoding step raises an error of Python's, its caches half written",
    run=partial(_fail_runs, Agent.let_raise),
    statuses_in_batch=frozenset({"INTERNAL"}),
)
RUNTIME_FAILS: Final = Fault(
    name="onnx-runtime",
    summary="ONNX Runtime itself fails in the middle of an encoder run or a decoding step",
    run=partial(_fail_runs, Agent.let_fail),
    statuses_in_batch=frozenset({"INTERNAL"}),
)


def hanging(hang_s: float) -> Fault:
    """Return the fault of steps that hang for so long: everybody in these batches waits, and nobody else."""
    return Fault(
        name="stalled-step",
        summary="a decoding step of every thread hangs for seconds",
        run=_hang,
        limits=Limits(max_bystander_s=hang_s + _DISPATCH_S),
    )
