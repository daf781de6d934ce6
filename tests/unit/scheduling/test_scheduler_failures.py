"""Whatever becomes of a core, a connection or the bookkeeping: every segment is answered, and decoding goes on."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.scheduling.batch_policy import Core
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock, NewSegment
from dragoman_service.worker.worker import Worker
from tests.fakes import EOS, FlakyModel, GatedModel, ManualClock, ToyModel, make_segment
from tests.threaded_core import CACHE_BYTES, TIMEOUT_S, MortalCore, begin, decode_here, joining

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
MANY_STEPS = 5000
NUM_REQUESTS = 200
NUM_CROSSINGS = 200  # of which some meet in the same round of the engine's thread
NUM_STOPPED = 30  # of which some would be stopped by two in the very same moment
LARGE = 20_000
"""Source tokens: with their attention a report is larger than what a socket holds, as are commands of a few."""


class Bench:
    """A client and its metrics."""

    def __init__(
        self, core: Core, *, clock: Clock = time.monotonic, limits: StepModel = ENDLESS, **settings: Any
    ) -> None:
        self.metrics = Metrics(CollectorRegistry())
        options = SchedulingSettings(**{"num_workers": 1, **settings})
        self.client = Scheduler(core, limits.limits, options, self.metrics, clock)
        self.client.start()

    def submit(self, *, num_steps: int = 2) -> "Future[SegmentResult]":
        (future,) = self.client.submit([make_segment(7, 8, max_target_tokens=num_steps)])
        return future

    def decodes(self) -> bool:
        return self.submit().result(TIMEOUT_S).num_steps == 2

    def num_ended(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("dragoman_segments_total", {"outcome": outcome}) or 0.0

    @property
    def num_failures(self) -> float | None:
        return self.metrics.registry.get_sample_value("dragoman_batch_failures_total")


@contextmanager
def bench_of(core: Core, **options: Any) -> Iterator[Bench]:
    bench = Bench(core, **options)
    try:
        yield bench
    finally:
        bench.client.stop(TIMEOUT_S)


@contextmanager
def mortal_bench(model: StepModel, **options: Any) -> Iterator[tuple[MortalCore, Bench]]:
    core = MortalCore(model)
    with bench_of(core, **options) as bench:
        try:
            yield core, bench
        finally:
            if isinstance(model, GatedModel):
                model.open()


class ScriptedCore:
    """Its only batch is played by the test."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(theirs.detach())
        self._ends = [Connection(ours.detach())]
        self.killed: list[str] = []
        self.can_be_killed = True
        self.load_error: Exception | None = None

    def connect(self) -> "Connection[Any, Any]":
        if not self._ends:
            raise EngineError("there is only one")
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
        assert self.connection.poll(TIMEOUT_S), "no command came"
        command: BatchCommand = self.connection.recv()
        return command

    def tell(self, *outputs: BatchStepOutput) -> None:
        self.connection.send(BatchReport(outputs=outputs, cache_bytes=0, cpu_s=0.5, copied_bytes=(30, 4)))


def test_a_segment_that_was_encoded_ahead_does_not_end_with_the_process() -> None:
    model = GatedModel(ENDLESS)
    with mortal_bench(model, max_batch_segments=2) as (core, bench):
        in_batch = [bench.submit(num_steps=MANY_STEPS) for _ in range(2)]
        model.pass_until(2)
        waiting = [bench.submit() for _ in range(4)]
        in_batch[0].cancel()
        while not core.encoded:
            model.let_pass()
            model.wait_for_step()

        core.die()
        model.open()

        assert all(future.result(TIMEOUT_S).num_steps == 2 for future in waiting[1:])
        assert isinstance(in_batch[1].exception(TIMEOUT_S), EngineError)


def ended(segment_id: int) -> BatchStepOutput:
    (found,) = decode_here(ToyModel(), joining(segment_id, max_target_tokens=2)).values()
    return BatchStepOutput(ended=(found,))


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that the engine's thread brings about."""
    until_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < until_s, "it never came about"


def is_failed(future: "Future[SegmentResult]") -> bool:
    return isinstance(future.exception(TIMEOUT_S), EngineError)


class FaultyCore(MortalCore):
    """Raises what the test says instead of connecting, as often as it says."""

    def __init__(self, faults: list[Exception]) -> None:
        super().__init__(ENDLESS)
        self._faults = faults

    def connect(self) -> "Connection[Any, Any]":
        if self._faults:
            raise self._faults.pop(0)
        return super().connect()


@pytest.mark.parametrize(
    "fault", [ValueError("wrong"), RuntimeError("broken"), MemoryError(), EngineError("gone"), ConnectionRefusedError()]
)
def test_whatever_is_raised_all_in_the_batch_are_answered_and_decoding_goes_on(fault: Exception) -> None:
    with bench_of(FaultyCore([fault])) as bench:
        lost = bench.client.submit([make_segment(7)] * 2)

        assert all(map(is_failed, lost))
        assert bench.decodes()

        assert bench.num_failures == 1
        assert bench.metrics.registry.get_sample_value("dragoman_batch_live_segments") == 0


@pytest.mark.parametrize(
    "nonsense",
    ["no report", BatchReport(outputs=(BatchStepOutput(num_rows=1, step_rows=1),), cache_bytes=0, cpu_s=0.0)],
    ids=["not_a_report", "a_step_without_segments"],
)
def test_nonsense_from_a_core_fails_its_batch(nonsense: object) -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        lost = bench.submit()
        core.command()

        core.connection.send(nonsense)

        assert is_failed(lost)
        assert bench.num_failures == 1


def test_what_cannot_be_read_fails_its_batch() -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        lost = bench.submit()
        core.command()

        core.connection.send_bytes(b"not pickled")

        assert is_failed(lost)


class FaultyClock:
    """Raises once in a thread whose name begins so, at the n-th time that such a thread asks."""

    def __init__(self, thread: str, fails_at: int) -> None:
        self.left = fails_at
        self._thread = thread

    def __call__(self) -> float:
        if threading.current_thread().name.startswith(self._thread):
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("no time on purpose")
        return time.monotonic()


@pytest.mark.parametrize("thread", ["engine", "decode-"])
@pytest.mark.parametrize("fails_at", range(1, 13))
def test_wherever_a_thread_fails_all_are_answered_and_it_goes_on(thread: str, fails_at: int) -> None:
    clock = FaultyClock(thread, fails_at)
    with bench_of(Worker(ENDLESS, clock=clock), clock=clock) as bench:
        futures = [bench.submit(num_steps=9) for _ in range(3)]
        while clock.left >= 0:
            futures.append(bench.submit(num_steps=9))
            assert isinstance(futures[-1].exception(TIMEOUT_S), EngineError | None)

        assert bench.decodes()
        errors = [future.exception(TIMEOUT_S) for future in futures]
        assert all(isinstance(error, EngineError | None) for error in errors)
        assert bench.client.drain(TIMEOUT_S)
        num_failed = sum(error is not None for error in errors)
        assert bench.num_ended("error") == num_failed
        assert bench.num_failures or not num_failed


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, OSError, EngineError])
@pytest.mark.parametrize("operation", ["encode", "new_batch", "start", "step", "drop"])
def test_a_fault_of_the_model_fails_its_batch_and_the_connection_stays(operation: str, error: type[Exception]) -> None:
    faults = [operation]
    model = FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()), error=error)
    with mortal_bench(model) as (core, bench):
        first, second = bench.client.submit(
            [make_segment(7, max_target_tokens=2), make_segment(7, max_target_tokens=9)]
        )

        assert is_failed(second)
        assert first.done()
        assert bench.decodes()
        assert len(core.connections) == 1
        assert bench.num_failures == 1
        assert bench.num_ended("error") == sum(map(is_failed, (first, second)))


def test_what_reports_say_of_the_core_is_known() -> None:
    with mortal_bench(ENDLESS) as (_, bench):
        assert bench.decodes()

        assert bench.client.cache_bytes == CACHE_BYTES


def test_cpu_time_and_copies_of_a_process_are_counted() -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        future = bench.submit()
        (new,) = core.command().new_segments
        core.tell()
        core.tell(ended(new.segment_id))
        future.result(TIMEOUT_S)

        assert bench.metrics.registry.get_sample_value("dragoman_decoding_process_cpu_seconds_total") == 1.0
        copied = partial(bench.metrics.registry.get_sample_value, "dragoman_device_copy_bytes_total")
        assert [copied({"direction": direction}) for direction in ("to_device", "to_host")] == [60, 8]


def test_many_wakes_are_one() -> None:
    with mortal_bench(ENDLESS) as (_, bench):
        for _ in range(100_000):  # more than a socket holds
            bench.client._wake()

        assert bench.decodes()


def test_no_wake_is_ever_lost() -> None:
    """Each request is one wake: one that is lost is a request without an answer."""

    def ask() -> int:
        return sum(bench.decodes() for _ in range(NUM_REQUESTS))

    with mortal_bench(ENDLESS, num_workers=2) as (_, bench):
        asking = [begin(ask) for _ in range(3)]

        assert [one.result(TIMEOUT_S) for one in asking] == [NUM_REQUESTS] * 3


def test_a_core_that_dies_fails_those_in_its_batch_and_the_next_one_connects_anew() -> None:
    model = GatedModel(ENDLESS)
    with mortal_bench(model) as (core, bench):
        lost = bench.submit()
        model.wait_for_step()

        core.die()

        assert is_failed(lost)
        model.open()
        assert bench.decodes()
        assert len(core.connections) == 2
        assert bench.client.cache_bytes == CACHE_BYTES


def test_a_core_that_dies_costs_no_segment_that_waits() -> None:
    model = GatedModel(ENDLESS)
    with mortal_bench(model, max_batch_segments=1) as (core, bench):
        lost = bench.submit()
        model.wait_for_step()
        waiting = [bench.submit() for _ in range(3)]

        core.die()
        model.open()

        assert is_failed(lost)
        assert [future.result(TIMEOUT_S).num_steps for future in waiting] == [2] * 3
        assert bench.num_failures == 1


@pytest.mark.parametrize("num_ends", [1, 3])
def test_an_end_while_the_batch_is_empty_is_not_noticed(num_ends: int) -> None:
    with mortal_bench(ENDLESS) as (core, bench):
        for _ in range(num_ends):
            assert bench.decodes()
            core.die()

        assert bench.decodes()
        assert len(core.connections) == num_ends + 1
        assert bench.num_failures == 0


def test_an_end_after_all_were_cancelled_is_not_noticed() -> None:
    model = GatedModel(ENDLESS)
    with mortal_bench(model) as (core, bench):
        cancelled = bench.submit(num_steps=MANY_STEPS)
        model.wait_for_step()
        cancelled.cancel()
        core.die()
        model.open()

        assert bench.decodes()
        assert bench.num_failures == 0


def test_an_end_after_a_fault_is_not_noticed() -> None:
    faults = ["step"]
    with mortal_bench(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()))) as (core, bench):
        assert is_failed(bench.submit())
        core.die()

        assert bench.decodes()
        assert bench.num_failures == 1


def test_what_a_dead_core_said_of_cancelled_segments_is_forgotten() -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        cancelled, other = bench.submit(), bench.submit()
        new: list[NewSegment] = []
        while len(new) < 2:  # in one command or two
            new += core.command().new_segments
        cancelled.cancel()
        assert core.command().dropped_ids == (new[0].segment_id,)

        core.tell(ended(new[0].segment_id), ended(new[1].segment_id))

        assert other.result(TIMEOUT_S).num_steps == 2
        assert cancelled.cancelled()


def test_the_core_is_told_of_a_cancellation_that_a_report_crosses() -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        for _ in range(NUM_CROSSINGS):
            cancelled = bench.submit()
            (new,) = core.command().new_segments

            begin(cancelled.cancel)
            core.tell()

            assert core.command().dropped_ids == (new.segment_id,)
            core.tell()


def test_an_answer_that_came_before_the_end_is_given() -> None:
    """The process was sound when it answered: a segment that has left the batch loses nothing."""
    core = ScriptedCore()
    with bench_of(core) as bench:
        answered, lost = bench.client.submit([make_segment(7), make_segment(8)])
        first, _ = core.command().new_segments

        core.tell(ended(first.segment_id))
        core.connection.close()

        assert answered.result(TIMEOUT_S).num_steps == 2
        assert is_failed(lost)


def test_a_fault_of_a_step_before_a_segment_joined_does_not_concern_it() -> None:
    """The report of the fault and the command with the new segment cross each other."""
    core = ScriptedCore()
    with bench_of(core) as bench:
        broken = bench.submit()
        (first,) = core.command().new_segments
        whole = bench.submit()
        (second,) = core.command().new_segments

        core.tell(BatchStepOutput(fault="step broken on purpose", lost_ids=(first.segment_id,)))
        core.tell(ended(second.segment_id))

        assert is_failed(broken)
        assert whole.result(TIMEOUT_S).num_steps == 2


def test_a_batch_that_does_not_report_is_lost_with_its_process() -> None:
    core = ScriptedCore()
    with bench_of(core, max_step_s=0.3) as bench:
        lost = bench.submit()
        core.command()

        assert is_failed(lost)
        assert core.killed == ["no_step"]
        assert bench.num_failures == 1


def test_a_batch_that_reports_goes_on_however_long_it_takes() -> None:
    core, clock = ScriptedCore(), ManualClock()
    with bench_of(core, clock=clock, max_step_s=3.0) as bench:
        future = bench.submit()
        (new,) = core.command().new_segments

        for _ in range(10):
            clock.advance(1.0)
            core.tell()
            until(lambda: bench.client._batches[0].reported_at_s == clock.now_s)
        core.tell(ended(new.segment_id))

        assert future.result(TIMEOUT_S).num_steps == 2
        assert not core.killed


def test_a_batch_in_a_thread_that_nothing_can_end_is_waited_for() -> None:
    core = ScriptedCore()
    core.can_be_killed = False
    with bench_of(core, max_step_s=0.1) as bench:
        future = bench.submit()
        (new,) = core.command().new_segments
        while len(core.killed) < 2:
            assert not future.done()

        core.tell(ended(new.segment_id))

        assert future.result(TIMEOUT_S).num_steps == 2


def test_the_time_that_the_server_itself_stood_still_does_not_count() -> None:
    core, clock = ScriptedCore(), ManualClock()
    with bench_of(core, clock=clock) as bench:
        future = bench.submit()
        (new,) = core.command().new_segments

        clock.advance(1000.0)
        until(lambda: bench.client._looked_at_s == clock.now_s)
        core.tell(ended(new.segment_id))

        assert future.result(TIMEOUT_S).num_steps == 2
        assert not core.killed


def test_a_warm_up_that_takes_too_long_ends() -> None:
    core = ScriptedCore()
    core.load_error = EngineError("too long")
    client = Scheduler(core, ENDLESS.limits, SchedulingSettings(), Metrics(CollectorRegistry()))

    with pytest.raises(EngineError, match="too long"):
        begin(client.warm_up, [make_segment(7)]).result(TIMEOUT_S)

    client.stop(TIMEOUT_S)


def test_a_network_without_a_possible_continuation_fails_the_segment(caplog: pytest.LogCaptureFixture) -> None:
    core = ScriptedCore()
    with bench_of(core) as bench:
        future = bench.submit()
        (new,) = core.command().new_segments

        core.tell(BatchStepOutput(ended=(EndedSegment(segment_id=new.segment_id, hypotheses=(), num_steps=1),)))

        assert is_failed(future)
        assert "the network gave no possible continuation" in caplog.messages


def test_stopping_ends_the_batches_of_the_core() -> None:
    with mortal_bench(ENDLESS) as (core, bench):
        bench.submit(num_steps=MANY_STEPS)
        bench.client.stop(TIMEOUT_S)

        assert not any(thread.is_alive() for thread in core._threads)
        bench.client._wake()  # does no harm


def test_a_client_may_be_stopped_by_several_at_once() -> None:
    """By the thread that unloads a version, and by the end of the server while it is being unloaded."""
    for _ in range(NUM_STOPPED):
        core = MortalCore(ENDLESS)
        bench = Bench(core, num_workers=3)
        assert bench.decodes()

        for stopping in [begin(bench.client.stop) for _ in range(4)]:
            stopping.result(TIMEOUT_S)

        assert not [thread for thread in core._threads if thread.is_alive()]
        assert bench.metrics.registry.get_sample_value("dragoman_batch_live_segments") == 0


def test_large_commands_and_large_reports_at_the_same_time_arrive() -> None:
    model = ToyModel(eos_bias=-100.0, max_source_tokens=2 * LARGE)
    search, source = SearchConfig(beam_size=1, max_target_tokens=2), (*range(4, 9),) * (LARGE // 5)
    segments = [Segment(source_ids=(*source, *[4] * n, EOS), search=search, wants_attention=True) for n in range(8)]
    alone: Callable[[Segment], Any] = lambda one: model.cross_attention(one.source_ids, (5,))  # noqa: E731
    with mortal_bench(model, limits=model, max_batch_segments=8, max_batch_padded_tokens=10**6) as (_, bench):
        futures = [future for _ in range(3) for future in bench.client.submit(segments)]

        results = [future.result(TIMEOUT_S) for future in futures]

    for segment, result in zip(segments * 3, results, strict=True):
        attention = result.hypotheses[0].attention
        assert attention is not None
        np.testing.assert_array_equal(attention[:, :, :1], alone(segment))
