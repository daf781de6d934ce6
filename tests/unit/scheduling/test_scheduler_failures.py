"""Failures of workers, connections and the scheduler's own code: each segment is resolved, and decoding goes on."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.errors import DeadlineExceededError, EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput
from dragoman_service.worker.worker import Worker
from tests.background_loop import background_loop
from tests.fakes import CACHE_BYTES, EOS, FlakyModel, ToyModel, make_segment
from tests.mortal_worker import TIMEOUT_S, MortalWorker, begin, decode_here, joining
from tests.unit.scheduling.scheduler_bench import ENDLESS, MANY_STEPS, Bench

MakeBench = Callable[..., Bench]

NUM_REQUESTS = 200
NUM_CROSSINGS = 200  # some of which meet in the same check of the dispatcher
NUM_STOPPED = 30  # some of which are stopped by two threads in the same moment
LARGE = 20_000  # source tokens: a report with their attention is larger than the buffer of a socket


class ScriptedWorker(Worker):
    """Its only batch is played by the test."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        ours, theirs = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(theirs.detach())
        self._ends = [Connection(ours.detach())]
        self.killed: list[str] = []
        self.can_be_killed = True
        self.load_error: Exception | None = None

    def connect(self) -> "Connection[Any, Any]":
        if not self._ends:
            raise EngineError("there is only one connection")
        return self._ends.pop()

    def close(self, timeout_s: float) -> None:
        self.connection.close()

    def kill(self, cause: str) -> bool:
        self.killed.append(cause)
        return self.can_be_killed

    def check_load(self) -> None:
        if self.load_error:
            raise self.load_error

    def command(self) -> BatchCommand:
        assert self.connection.poll(TIMEOUT_S), "no command received"
        command: BatchCommand = self.connection.recv()
        return command

    def joined_ids(self, count: int = 1) -> list[int]:
        """Return the ids of the next segments that join, in one command or several."""
        ids: list[int] = []
        while len(ids) < count:
            ids += [new.segment_id for new in self.command().new_segments]
        return ids

    def report(self, *outputs: BatchStepOutput) -> None:
        self.connection.send(BatchReport(outputs=outputs, cache_bytes=0, cpu_s=0.5, copied_bytes=(30, 4)))


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker()


@pytest.fixture
def scripted(make_bench: MakeBench, worker: ScriptedWorker) -> Bench:
    """Return a started bench over the scripted worker."""
    return make_bench(worker=worker).start()


def ended(segment_id: int) -> BatchStepOutput:
    (segment,) = decode_here(ToyModel(), joining(segment_id, max_target_tokens=2)).values()
    return BatchStepOutput(ended=(segment,))


def until(holds: Callable[[], bool]) -> None:
    """Wait for the dispatcher."""
    until_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < until_s, "condition never held"


def submitted(bench: Bench, worker: ScriptedWorker) -> "tuple[Future[SegmentResult], int]":
    """Submit a segment; return its future and its id."""
    future = bench.submit()
    (segment_id,) = worker.joined_ids()
    return future, segment_id


def is_failed(future: "Future[SegmentResult]") -> bool:
    return isinstance(future.exception(TIMEOUT_S), EngineError)


@pytest.mark.parametrize("num_queued", [0, 3])
def test_dead_worker_fails_the_running_segments_and_no_queued_ones(make_bench: MakeBench, num_queued: int) -> None:
    bench = make_bench(max_batch_segments=1).start()
    running = bench.submit()
    bench.model.wait_for_step()
    queued = [bench.submit(2) for _ in range(num_queued)]

    bench.worker.die()
    bench.model.open()

    assert is_failed(running)
    assert [future.result(TIMEOUT_S).num_steps for future in queued] == [2] * num_queued
    assert bench.decodes()
    assert len(bench.worker.connections) == 2
    assert bench.metric("batch_failures_total") == 1
    assert bench.metric("batch_live_segments") == 0
    assert bench.scheduler.cache_bytes == CACHE_BYTES


def test_dead_worker_fails_no_segment_that_was_encoded_ahead(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch_segments=2, clock=time.monotonic).start()
    running = [bench.submit(MANY_STEPS) for _ in range(2)]
    bench.model.pass_until(2)
    queued = [bench.submit(2) for _ in range(4)]
    running[0].cancel()
    while not bench.worker.encoded:
        bench.model.let_pass()
        bench.model.wait_for_step()

    bench.worker.die()
    bench.model.open()

    assert all(future.result(TIMEOUT_S).num_steps == 2 for future in queued[1:])
    assert is_failed(running[1])


def test_death_of_a_worker_without_live_segments_is_no_failure(make_bench: MakeBench) -> None:
    bench = make_bench().start()
    cancelled = bench.submit(MANY_STEPS)
    bench.model.wait_for_step()
    cancelled.cancel()
    bench.worker.die()
    bench.model.open()

    for num_deaths in range(1, 4):
        assert bench.decodes()
        assert len(bench.worker.connections) == num_deaths + 1
        bench.worker.die()
    assert bench.metric("batch_failures_total") == 0


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, OSError, EngineError])
@pytest.mark.parametrize("operation", ["encode", "new_batch", "start", "step", "drop"])
def test_fault_of_the_model_fails_its_batch_and_keeps_the_connection(
    make_bench: MakeBench, operation: str, error: type[Exception]
) -> None:
    faults = [operation]
    model = FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()), error=error)
    bench = make_bench(model).start(is_open=True)
    first, second = bench.scheduler.submit([make_segment(7, max_target_tokens=n) for n in (2, 9)])

    assert is_failed(second)
    assert first.done()
    assert bench.decodes()
    assert len(bench.worker.connections) == 1
    assert bench.metric("batch_failures_total") == 1
    assert bench.metric("segments_total", outcome="error") == sum(map(is_failed, (first, second)))
    bench.worker.die()
    assert bench.decodes()
    assert bench.metric("batch_failures_total") == 1


class UnreachableWorker(MortalWorker):
    """Raises an error from the second `connect`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(ENDLESS)
        self._errors = [error]

    def connect(self) -> "Connection[Any, Any]":
        if self.connections and self._errors:
            raise self._errors.pop()
        return super().connect()


@pytest.mark.parametrize("error", [ValueError(), MemoryError(), EngineError("gone"), ConnectionRefusedError()])
def test_failed_connection_fails_the_segments_of_the_batch_only(make_bench: MakeBench, error: Exception) -> None:
    worker = UnreachableWorker(error)
    bench = make_bench(worker=worker).start()
    worker.die()
    lost = bench.scheduler.submit([make_segment(7)] * 2)

    assert all(map(is_failed, lost))
    assert bench.decodes()
    assert bench.metric("batch_failures_total") == 1
    assert bench.metric("batch_live_segments") == 0


class RestartingWorker(MortalWorker):
    """Takes until `is_restarted` for its second `connect`."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.is_restarted = threading.Event()

    def connect(self) -> "Connection[Any, Any]":
        if self.connections:
            assert self.is_restarted.wait(TIMEOUT_S)
        return super().connect()


def test_restart_of_a_worker_keeps_segments_queued_until_their_deadline(make_bench: MakeBench) -> None:
    worker = RestartingWorker()
    bench = make_bench(worker=worker).start()
    worker.die()

    patient, late = bench.submit(2), bench.submit(2, timeout_s=1.0)
    is_loop_free = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, True), background_loop())
    assert is_loop_free.result(TIMEOUT_S)
    bench.clock.advance(2.0)
    assert isinstance(late.exception(TIMEOUT_S), DeadlineExceededError)
    assert not patient.done()
    worker.is_restarted.set()

    assert patient.result(TIMEOUT_S).num_steps == 2
    assert bench.metric("batch_failures_total") == 0


def without_segments() -> BatchReport:
    return BatchReport(outputs=(BatchStepOutput(num_rows=1, step_rows=1),), cache_bytes=0, cpu_s=0.0)


@pytest.mark.parametrize(
    "send",
    [
        lambda connection: connection.send("no report"),
        lambda connection: connection.send(without_segments()),
        lambda connection: connection.send_bytes(b"not pickled"),
    ],
    ids=["not_a_report", "step_without_segments", "not_pickled"],
)
def test_invalid_report_fails_its_batch(
    scripted: Bench, worker: ScriptedWorker, send: Callable[["Connection[Any, Any]"], None]
) -> None:
    lost = scripted.submit()
    worker.command()

    send(worker.connection)

    assert is_failed(lost)
    assert scripted.metric("batch_failures_total") == 1


class FaultyClock:
    """Raises once, at the n-th call by a thread whose name has a prefix."""

    def __init__(self, thread: str, fails_at: int) -> None:
        self.num_left = fails_at
        self._thread = thread

    def __call__(self) -> float:
        if threading.current_thread().name.startswith(self._thread):
            self.num_left -= 1
            if self.num_left == 0:
                raise RuntimeError("clock broken on purpose")
        return time.monotonic()


@pytest.mark.parametrize("thread", ["background-loop", "decode-"])
@pytest.mark.parametrize("fails_at", range(1, 13))
def test_exception_anywhere_in_a_thread_leaves_no_segment_unresolved(
    make_bench: MakeBench, thread: str, fails_at: int
) -> None:
    clock = FaultyClock(thread, fails_at)
    bench = make_bench(clock=clock).start(is_open=True)
    futures = [bench.submit(9) for _ in range(3)]
    while clock.num_left >= 0:
        futures.append(bench.submit(9))
        assert isinstance(futures[-1].exception(TIMEOUT_S), EngineError | None)

    assert bench.decodes()
    errors = [future.exception(TIMEOUT_S) for future in futures]
    assert all(isinstance(error, EngineError | None) for error in errors)
    assert bench.scheduler.drain(TIMEOUT_S)
    num_failed = sum(error is not None for error in errors)
    assert bench.metric("segments_total", outcome="error") == num_failed
    assert bench.metric("batch_failures_total") or not num_failed


def test_cpu_time_and_copies_of_the_worker_are_counted(scripted: Bench, worker: ScriptedWorker) -> None:
    future, segment_id = submitted(scripted, worker)
    worker.report()
    worker.report(ended(segment_id))
    future.result(TIMEOUT_S)

    assert scripted.metric("worker_cpu_seconds_total") == 1.0
    copied = [scripted.metric("device_copy_bytes_total", direction=way) for way in ("to_device", "to_host")]
    assert copied == [60, 8]


def test_wakes_are_neither_lost_nor_blocking(make_bench: MakeBench) -> None:
    """Each request is one wake: a request whose wake is lost has no result."""
    bench = make_bench(num_workers=2).start(is_open=True)
    for _ in range(100_000):  # more than the buffer of a socket
        bench.scheduler._dispatcher.wake()

    asking = [begin(lambda: sum(bench.decodes() for _ in range(NUM_REQUESTS))) for _ in range(3)]

    assert [future.result(TIMEOUT_S) for future in asking] == [NUM_REQUESTS] * 3


def test_result_of_a_cancelled_segment_is_ignored(scripted: Bench, worker: ScriptedWorker) -> None:
    cancelled, other = scripted.submit(), scripted.submit()
    ids = worker.joined_ids(2)
    cancelled.cancel()
    assert worker.command().dropped_ids == (ids[0],)

    worker.report(*map(ended, ids))

    assert other.result(TIMEOUT_S).num_steps == 2
    assert cancelled.cancelled()


def test_cancellation_that_crosses_a_report_reaches_the_worker(scripted: Bench, worker: ScriptedWorker) -> None:
    for _ in range(NUM_CROSSINGS):
        cancelled, segment_id = submitted(scripted, worker)

        begin(cancelled.cancel)
        worker.report()

        assert worker.command().dropped_ids == (segment_id,)
        worker.report()


def test_result_before_the_end_of_the_connection_is_valid(scripted: Bench, worker: ScriptedWorker) -> None:
    resolved, lost = scripted.scheduler.submit([make_segment(7), make_segment(8)])
    first, _ = worker.joined_ids(2)

    worker.report(ended(first))
    worker.connection.close()

    assert resolved.result(TIMEOUT_S).num_steps == 2
    assert is_failed(lost)


def test_fault_of_a_step_does_not_fail_a_segment_that_joined_later(scripted: Bench, worker: ScriptedWorker) -> None:
    """The report of the fault crosses the command with the new segment."""
    lost, first = submitted(scripted, worker)
    other, second = submitted(scripted, worker)

    worker.report(BatchStepOutput(fault="step broken on purpose", lost_ids=(first,)))
    worker.report(ended(second))

    assert is_failed(lost)
    assert other.result(TIMEOUT_S).num_steps == 2


def test_worker_that_does_not_report_in_time_is_killed(make_bench: MakeBench, worker: ScriptedWorker) -> None:
    bench = make_bench(worker=worker, clock=time.monotonic, max_step_s=0.3).start()
    lost = bench.submit()
    worker.command()

    assert is_failed(lost)
    assert worker.killed == ["no_step"]
    assert bench.metric("batch_failures_total") == 1


def test_worker_that_reports_is_never_killed(make_bench: MakeBench, worker: ScriptedWorker) -> None:
    bench = make_bench(worker=worker, max_step_s=3.0).start()
    future, segment_id = submitted(bench, worker)
    (batch,) = bench.scheduler._dispatcher._batches

    for _ in range(10):
        bench.clock.advance(1.0)
        worker.report()
        until(lambda: batch.reported_at_s == bench.clock.now_s)
    worker.report(ended(segment_id))

    assert future.result(TIMEOUT_S).num_steps == 2
    assert not worker.killed


def test_stuck_thread_that_cannot_be_killed_is_waited_for(make_bench: MakeBench, worker: ScriptedWorker) -> None:
    worker.can_be_killed = False
    bench = make_bench(worker=worker, clock=time.monotonic, max_step_s=0.1).start()
    future, segment_id = submitted(bench, worker)
    while len(worker.killed) < 2:
        assert not future.done()

    worker.report(ended(segment_id))

    assert future.result(TIMEOUT_S).num_steps == 2


def test_pause_of_the_server_kills_no_worker(scripted: Bench, worker: ScriptedWorker) -> None:
    future, segment_id = submitted(scripted, worker)

    scripted.clock.advance(1000.0)
    until(lambda: scripted.scheduler._dispatcher._polled_at_s == scripted.clock.now_s)
    worker.report(ended(segment_id))

    assert future.result(TIMEOUT_S).num_steps == 2
    assert not worker.killed


def test_warm_up_that_takes_too_long_is_aborted(worker: ScriptedWorker) -> None:
    worker.load_error = EngineError("too long")
    scheduler = Scheduler(
        worker, ENDLESS.limits, SchedulingSettings(), Metrics(CollectorRegistry()), loop=background_loop()
    )

    with pytest.raises(EngineError, match="too long"):
        begin(scheduler.warm_up, [make_segment(7)]).result(TIMEOUT_S)

    scheduler.stop(TIMEOUT_S)


def test_segment_without_a_valid_token_fails(
    scripted: Bench, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    future, segment_id = submitted(scripted, worker)

    worker.report(BatchStepOutput(ended=(EndedSegment(segment_id=segment_id, hypotheses=(), num_steps=1),)))

    assert is_failed(future)
    assert "no valid next token: all candidates masked" in caplog.messages


def test_several_threads_can_stop_a_scheduler(make_bench: MakeBench) -> None:
    """A version may be unloaded while the server stops."""
    for _ in range(NUM_STOPPED):
        bench = make_bench(num_workers=3).start(is_open=True)
        assert bench.decodes()

        for stopping in [begin(bench.scheduler.stop) for _ in range(4)]:
            stopping.result(TIMEOUT_S)

        names = [thread.name for thread in threading.enumerate()]
        assert not any(name.startswith(("decode-", "scheduler", "commands")) for name in names)
        assert bench.metric("batch_live_segments") == 0
        bench.scheduler._dispatcher.wake()  # does nothing


def test_large_commands_and_large_reports_cross(make_bench: MakeBench) -> None:
    model = ToyModel(eos_bias=-100.0, max_source_tokens=2 * LARGE)
    search, source = SearchConfig(beam_size=1, max_target_tokens=2), (*range(4, 9),) * (LARGE // 5)
    segments = [Segment(source_ids=(*source, *[4] * n, EOS), search=search, wants_attention=True) for n in range(8)]
    bench = make_bench(model, max_batch_segments=8, max_batch_padded_tokens=10**6).start(is_open=True)

    futures = [future for _ in range(3) for future in bench.scheduler.submit(segments)]

    for segment, future in zip(segments * 3, futures, strict=True):
        attention = future.result(TIMEOUT_S).hypotheses[0].attention
        assert attention is not None
        np.testing.assert_array_equal(attention[:, :, :1], model.cross_attention(segment.source_ids, (5,)))
