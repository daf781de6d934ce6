"""Whatever a batch or its bookkeeping raises: all in the batch are answered, it is counted, and decoding goes on."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from service.datatypes import Priority
from service.decoding.step_model import StepModel
from service.engine.client import Scheduler, Worker
from service.engine.core import LocalBatch, LocalBatches
from service.engine.protocol import Clock, Orders, Turn
from service.engine.queue import PendingSegment
from service.engine.settings import SchedulingSettings
from service.errors import EngineError
from service.telemetry.metrics import Metrics
from tests.fakes import ManualClock, ToyModel, make_segment

TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang
MODEL = ToyModel(eos_bias=-100.0)
NONSENSE = Turn(num_rows=1, step_rows=1)  # a step without segments: the share of padding divides by zero


class FaultyBatch(LocalBatch):
    """Does something else than exchange as often as the test says."""

    def __init__(self, model: StepModel, clock: Clock, instead: list[Callable[[], Sequence[Turn]]]) -> None:
        super().__init__(model, clock)
        self._instead = instead

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        turns = super().exchange(orders)
        return self._instead.pop()() if self._instead else turns


class FaultyBatches(LocalBatches):
    def __init__(self, instead: list[Callable[[], Sequence[Turn]]]) -> None:
        super().__init__(MODEL)
        self._instead = instead

    def new_batch(self, clock: Clock) -> LocalBatch:
        return FaultyBatch(MODEL, clock, self._instead)


class FaultyClock:
    """Raises once in a decoding thread, at the n-th time that such a thread asks."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    def __call__(self) -> float:
        if threading.current_thread().name.startswith("decode-"):
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("no time on purpose")
        return time.monotonic()


def raising(error: Exception) -> Callable[[], Sequence[Turn]]:
    def fail() -> Sequence[Turn]:
        raise error

    return fail


FAULTS = [raising(ValueError("wrong")), raising(RuntimeError("broken")), raising(MemoryError()), lambda: [NONSENSE]]


def make_pending(*, num_steps: int = 2) -> PendingSegment:
    segment = make_segment(7, 8, max_target_tokens=num_steps)
    return PendingSegment(segment=segment, priority=Priority.INTERACTIVE, admitted_at_s=0.0, deadline_s=100.0)


def num_failures(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("mt_batch_failures_total")


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_an_exchange_raises_all_in_the_batch_are_answered(fault: Callable[[], Sequence[Turn]]) -> None:
    metrics, instead = Metrics(CollectorRegistry()), list[Callable[[], Sequence[Turn]]]()
    worker = Worker(FaultyBatch(MODEL, ManualClock(), instead), metrics=metrics, clock=ManualClock())
    running, joining = make_pending(num_steps=9), make_pending(num_steps=9)
    worker.hand_over([running])
    worker.exchange()
    instead.append(fault)

    worker.hand_over([joining])
    worker.exchange()

    assert [isinstance(one.future.exception(0), EngineError) for one in (running, joining)] == [True, True]
    assert worker.num_segments == 0
    assert metrics.registry.get_sample_value("mt_batch_live_segments") == 0
    assert num_failures(metrics) == 1


def test_after_a_failure_the_batch_is_empty_and_decodes_who_comes() -> None:
    instead = [raising(ValueError("wrong"))]
    batch = FaultyBatch(MODEL, ManualClock(), instead)
    worker, whole = Worker(batch, metrics=Metrics(CollectorRegistry()), clock=ManualClock()), make_pending()
    worker.hand_over([make_pending(num_steps=9)])
    worker.exchange()
    assert batch.num_segments == 0

    worker.hand_over([whole])
    worker.exchange()
    worker.exchange()

    assert whole.future.result(0).num_steps == 2


@contextmanager
def scheduler_of(batches: LocalBatches, metrics: Metrics, clock: Clock = time.monotonic) -> Iterator[Scheduler]:
    scheduler = Scheduler(batches, SchedulingSettings(num_decoding_threads=1), metrics, clock=clock)
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop(TIMEOUT_S)


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_an_exchange_raises_the_thread_goes_on(fault: Callable[[], Sequence[Turn]]) -> None:
    metrics = Metrics(CollectorRegistry())
    with scheduler_of(FaultyBatches([fault]), metrics) as scheduler:
        broken = scheduler.submit([make_segment(7, max_target_tokens=9)] * 2)
        assert all(isinstance(future.exception(TIMEOUT_S), EngineError) for future in broken)

        (whole,) = scheduler.submit([make_segment(7, max_target_tokens=3)])

        assert whole.result(TIMEOUT_S).num_steps == 3
    assert num_failures(metrics) == 1


@pytest.mark.parametrize("fails_at", range(1, 13))
def test_wherever_a_decoding_thread_fails_all_are_answered_and_it_goes_on(fails_at: int) -> None:
    metrics, clock = Metrics(CollectorRegistry()), FaultyClock(fails_at)
    with scheduler_of(LocalBatches(MODEL), metrics, clock) as scheduler:
        first = scheduler.submit([make_segment(7, max_target_tokens=9)] * 2)
        for future in first:
            assert isinstance(future.exception(TIMEOUT_S), EngineError | None)

        (second,) = scheduler.submit([make_segment(7, max_target_tokens=9)])

        assert isinstance(second.exception(TIMEOUT_S), EngineError | None)
        assert scheduler.submit([make_segment(7, max_target_tokens=3)])[0].result(TIMEOUT_S).num_steps == 3
    assert clock.left < 0
    assert num_failures(metrics) == 1
