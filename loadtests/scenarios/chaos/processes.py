"""Faults of processes and machine: failing and hanging runs, signals, log, files, clock."""

import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

import psutil

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply
from loadtests.generator.client import Client
from loadtests.generator.metrics import process_tree
from loadtests.scenarios.chaos.fault import (
    LATE,
    NUM_WORKERS,
    FaultRun,
    RunKind,
    copy_tree,
    fault,
    lasting,
    requests_metric,
)
from loadtests.scenarios.control_traffic import connect
from loadtests.scenarios.stress_server import only_bundle, poll

_NUM_CALLERS: Final = 4
_IN_BATCH_S: Final = 0.5
_SHORT_DEADLINE_S: Final = 0.3
_MAX_STEP_S: Final = 1.5
_STEPS: Final = "dragoman_step_duration_seconds"
_FAILED_SEGMENTS: Final = 'dragoman_segments_total{outcome="error"}'
_RESTARTS: Final = "dragoman_worker_restarts_total"
_LOST_LINES: Final = "dragoman_lost_log_lines_total"
_JUMP_HANG_S: Final = 1.5
_CLOCK_S: Final = 0.1  # within which the server reads the clock again
_PLACES: Final[tuple[Literal["encoder", "step"], ...]] = ("encoder", "step")
_LOADING: Final = {"slowest_s": 4.0}  # loading models uses the cores


@fault(amounts=(2, 10), expected={"INTERNAL"}, hits_batch=True, metric=_FAILED_SEGMENTS)
def engine_fails_late(run: FaultRun) -> None:
    """An encoder run or a decoding step of the engine fails after it has written its results."""
    _fail_runs(run, "fail-after")


@fault(amounts=(2, 10), expected={"INTERNAL"}, hits_batch=True, metric=_FAILED_SEGMENTS)
def engine_fails(run: FaultRun) -> None:
    """An encoder run or a decoding step of the engine fails before it writes results."""
    _fail_runs(run, "fail-before")


def _fail_runs(run: FaultRun, kind: RunKind) -> None:
    with ThreadPoolExecutor(_NUM_CALLERS) as pool:
        for _ in range(run.amount):
            for where in _PLACES:
                run.server.arm(kind, where)
                statuses = [reply.status for reply in pool.map(run.ask, range(_NUM_CALLERS))]
                run.status_counts.update(status for status in statuses if status != "OK")
                run.server.wait_until_triggered()
    run.control.wait_for_answers()
    num_requests = run.growth_of(requests_metric("Translate", "INTERNAL"))
    num_segments = run.growth_of(_FAILED_SEGMENTS)
    run.require(num_segments >= num_requests, f"{num_requests} requests failed, but only {num_segments} segments")


@fault(
    seconds=(2.0, 8.0), expected=LATE, metric=requests_metric("Translate", "DEADLINE_EXCEEDED"), delays={"slowest_s"}
)
def stalled_step(run: FaultRun) -> None:
    """A decoding step hangs for seconds, first in one worker, then in all.

    In one worker: another worker serves new requests. In all: a caller gets a status when its deadline passes.
    """
    hang_s = run.seconds
    run.server.hang_steps(hang_s)
    time.sleep(0.1)  # a request that joins the worker as its step begins waits with the batch
    others = [run.ask(timeout_s=hang_s) for _ in lasting(hang_s - 0.5)]
    run.require_ok(f"one of {NUM_WORKERS} workers hung", others)
    slowest_s = max(reply.latency_s for reply in others)
    run.require(slowest_s < hang_s / 2, f"while one worker hung, a call to another took {slowest_s:.2f} s")
    run.control.wait_for_answers()

    run.server.hang_steps(hang_s, count=NUM_WORKERS)
    short = [run.ask(timeout_s=_SHORT_DEADLINE_S) for _ in lasting(hang_s - 0.5)]
    run.require_late("all steps hung", short, _SHORT_DEADLINE_S)
    run.require(run.status_counts["DEADLINE_EXCEEDED"] > 0, "no deadline passed while all steps hung")
    run.control.wait_for_answers()


@fault(
    seconds=(5.0, 5.0),
    expected={"DEADLINE_EXCEEDED"},
    metric=f"{_STEPS}{{>2.5}}",
    limits={"slowest_s": 3.0, "health_s": 3.0},
    delays={"slowest_s", "health_s"},
)
def sigstop(run: FaultRun) -> None:
    """All processes are stopped (SIGSTOP) for 5 seconds and continue (SIGCONT)."""
    processes = [psutil.Process(pid) for pid in process_tree(run.server.process.pid)]
    run.server.hang_steps(_IN_BATCH_S)  # so that requests are in a batch
    with ThreadPoolExecutor(_NUM_CALLERS + 1) as pool:
        for process in processes:
            process.suspend()
        try:
            late = [pool.submit(run.ask, timeout_s=1.0) for _ in range(_NUM_CALLERS)]
            patient = pool.submit(run.ask, timeout_s=30.0)
            time.sleep(run.seconds)
        finally:
            for process in processes:
                process.resume()
    run.require_late("stopped", [one.result() for one in late], 1.0, slack_s=1.0)
    run.require_ok("a long deadline while stopped", [patient.result()])
    run.control.wait_for_answers()  # the interrupted step was longer than any other
    run.num_seen = run.growth_of(f"{_STEPS}_count", less=f'{_STEPS}_bucket{{le="2.5"}}')


@fault(expected={"INTERNAL"}, hits_batch=True, metric=_RESTARTS)
def decoding_killed(run: FaultRun) -> None:
    """The worker process is killed (SIGKILL) in the middle of a batch, as if memory ran out."""
    _lose_workers(run, psutil.Process.kill)


def _lose_workers(run: FaultRun, end: Callable[[psutil.Process], None]) -> None:
    workers = process_tree(run.server.process.pid)[1:]
    run.require(bool(workers), "the server has no worker process")
    run.server.arm("hang", "step", seconds=_IN_BATCH_S)
    with ThreadPoolExecutor(1) as pool:
        in_batch = pool.submit(run.ask)
        run.server.wait_until_triggered()
        for pid in workers:
            end(psutil.Process(pid))
    run.status_counts.update({in_batch.result().status} - {"OK"})
    run.control.wait_for_answers()
    num_restarts = run.growth_of(_RESTARTS)
    run.require(num_restarts == len(workers), f"{len(workers)} processes were lost, {num_restarts} restarted")
    left = set(workers) & set(process_tree(run.server.process.pid))
    run.require(not left, f"{len(left)} lost processes are still children of the server")


@fault(amounts=(50, 2000), metric=_LOST_LINES)
def log_disk_full(run: FaultRun) -> None:
    """No space is left for the log (ENOSPC), temporarily."""
    _lose_lines(run, Path("/dev/full"))


@fault(amounts=(50, 2000), metric=_LOST_LINES)
def log_pipe_blocked(run: FaultRun) -> None:
    """The log collector hangs, so its pipe is full."""
    path = run.server.log.with_name("log-pipe")
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as reader:  # otherwise the writer waits for a reader
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)  # a dozen lines
        _lose_lines(run, path)


def _lose_lines(run: FaultRun, path: Path) -> None:
    known_requests = itertools.islice(itertools.cycle(run.known_requests), run.amount)
    with run.server.logging_to(path), connect(run.address) as client:
        run.require_ok("without a log", [known.send(client) for known in known_requests])
    is_logged = poll(lambda: '"log lines lost"' in run.logged(), bool, timeout_s=10.0)
    run.require(is_logged, "the log does not mention the lost lines")


@fault(expected={"FAILED_PRECONDITION"}, metric=requests_metric("LoadModel", "FAILED_PRECONDITION"), limits=_LOADING)
def version_broken(run: FaultRun) -> None:
    """A newer version arrives half copied and is loaded before the server has noticed it."""
    bundle, arriving = only_bundle(run.server.models), run.server.models.parent / "arriving"
    copy_tree(bundle, arriving)
    for path in arriving.glob("*.bin"):
        os.truncate(path, path.stat().st_size // 2)
    _keep_serving(run, arriving.rename(bundle.with_name("999")))


@fault(expected={"NOT_FOUND"}, metric=requests_metric("LoadModel", "NOT_FOUND"), limits=_LOADING)
def bundle_deleted(run: FaultRun) -> None:
    """The files of the model are deleted while it serves."""
    bundle = only_bundle(run.server.models)
    shutil.rmtree(bundle)
    _keep_serving(run, bundle)


@fault(expected={"OK"}, metric=requests_metric("LoadModel", "OK"), limits=_LOADING)
def bundle_truncated(run: FaultRun) -> None:
    """The files of the model are truncated in place while it serves; LoadModel has no effect on a loaded model."""
    bundle = only_bundle(run.server.models)
    for path in bundle.iterdir():
        os.truncate(path, min(1000, path.stat().st_size))
    _keep_serving(run, bundle)


def _keep_serving(run: FaultRun, bundle: Path) -> None:
    """Translate, load the version, translate again, and restore the models."""
    load = pb.LoadModelRequest(model=f"{bundle.parent.name}/{bundle.name}").SerializeToString()
    try:
        with connect(run.address) as client:
            run.require_ok("translations with any options", _translate_all(run, client))
            run.status_counts[client.call(Method.LOAD_MODEL, load).status] += 1
            time.sleep(0.6)  # three polls of the model directory
            run.require_ok("translations with any options", _translate_all(run, client))
        run.control.wait_for_answers()
    finally:
        copy_tree(run.server.original_models, run.server.models)


def _translate_all(run: FaultRun, client: Client) -> Iterator[Reply]:
    """Also use options whose files the server may read lazily."""
    for known in run.known_requests:
        yield known.send(client)
        for options in (pb.DecodingOptions(return_alignment=True), pb.DecodingOptions(coverage_penalty=0.2)):
            request = known.request + pb.TranslateRequest(options=options).SerializeToString()
            yield client.call(Method.TRANSLATE, request)


@fault(
    seconds=(3600.0, 3600.0),
    expected=LATE,
    limits={"slowest_s": 2 * _JUMP_HANG_S + 2.0},  # control traffic may be in both hanging steps
)
def clock_jump(run: FaultRun) -> None:
    """The wall clock jumps an hour ahead, two back, and to its old value; deadlines are not affected."""
    for offset_s in (run.seconds, -run.seconds, 0.0):
        run.server.hang_steps(_JUMP_HANG_S)
        run.server.control.clock_offset_ns = round(offset_s * 1e9)
        time.sleep(_CLOCK_S)
        shown_s = run.server.control.shown_ns / 1e9 - time.time()
        run.require(abs(shown_s - offset_s) < 60, f"the server's clock is {shown_s:+.0f} s off, not {offset_s:+.0f}")
        run.control.wait_for_answers()
        run.require_ok("shifted clock, deadline of 5 s", [run.ask(timeout_s=5.0)])
        run.server.hang_steps(_JUMP_HANG_S, count=NUM_WORKERS)
        run.require_late("shifted clock", [run.ask(timeout_s=_SHORT_DEADLINE_S)], _SHORT_DEADLINE_S)


@fault(
    expected={"INTERNAL"},
    hits_batch=True,
    metric='dragoman_worker_failures_total{cause="no_step"}',
    limits={"slowest_s": 2.0 + _MAX_STEP_S},
    settings={"DRAGOMAN_SCHEDULING__MAX_STEP_S": str(_MAX_STEP_S)},
)
def decoding_stopped(run: FaultRun) -> None:
    """The worker process is stopped (SIGSTOP) in the middle of a batch and never continues."""
    _lose_workers(run, psutil.Process.suspend)
