from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from service.datatypes import Priority, StageTimings
from service.decoding.step_model import StepModel
from service.engine.client import Worker
from service.engine.core import LocalBatch
from service.engine.queue import PendingSegment
from service.errors import DeadlineExceededError, EngineError
from service.telemetry.metrics import Metrics
from tests.fakes import FaultyToyModel, FlakyModel, ManualClock, ToyModel, WrappedModel, make_segment

ENDLESS = ToyModel(eos_bias=-100.0)


class SlowModel(WrappedModel):
    """Encoding takes 2 s of a clock moved by hand, a step 1 s."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self._clock.advance({"start": 2.0, "step": 1.0}.get(operation, 0.0))


def make_worker(model: StepModel, clock: ManualClock | None = None) -> Worker:
    clock = clock or ManualClock()
    return Worker(LocalBatch(model, clock), metrics=Metrics(CollectorRegistry()), clock=clock)


def make_pending(*, deadline_s: float = 100.0, **search: Any) -> PendingSegment:
    segment = make_segment(7, 8, **search)
    return PendingSegment(segment=segment, priority=Priority.INTERACTIVE, admitted_at_s=0.0, deadline_s=deadline_s)


def test_a_segment_is_answered_with_the_times_it_took() -> None:
    clock = ManualClock(3.0)
    worker, pending = make_worker(SlowModel(ENDLESS, clock), clock), make_pending(max_target_tokens=4)
    worker.hand_over([pending])

    turns = [turn for _ in range(4) for turn in worker.exchange()]

    result = pending.future.result(timeout=0)
    assert result.num_steps == 4
    assert result.timings == StageTimings(queue_s=3.0, encode_s=2.0, decode_s=4.0)
    assert [turn.num_tokens for turn in turns] == [0, 0, 0, 3]
    assert turns[0].busy_s == 3.0


def test_a_newcomer_joins_the_segments_that_run() -> None:
    worker = make_worker(ENDLESS)
    first, second = make_pending(max_target_tokens=3), make_pending(max_target_tokens=3)
    worker.hand_over([first])
    worker.exchange()

    worker.hand_over([second])
    worker.exchange()

    assert worker.num_segments == 2
    worker.exchange()
    assert first.future.done()
    assert not second.future.done()


def test_a_cancelled_segment_leaves_after_the_step() -> None:
    worker, pending = make_worker(ENDLESS), make_pending()
    worker.hand_over([pending])
    worker.exchange()

    pending.future.cancel()
    worker.exchange()

    assert worker.num_segments == 0


def test_a_segment_cancelled_before_its_start_is_not_encoded() -> None:
    worker, pending = make_worker(FlakyModel(ENDLESS, lambda _: True)), make_pending()
    worker.hand_over([pending])

    pending.future.cancel()
    worker.exchange()

    assert worker.num_segments == 0


def test_a_deadline_that_passes_between_steps_ends_the_search() -> None:
    clock = ManualClock()
    worker = make_worker(SlowModel(ENDLESS, clock), clock)
    hurried, patient = make_pending(deadline_s=4.0), make_pending()
    worker.hand_over([hurried, patient])

    worker.exchange()
    assert not hurried.future.done()
    worker.exchange()

    with pytest.raises(DeadlineExceededError, match="decode"):
        hurried.future.result(timeout=0)
    assert worker.num_segments == 1


@pytest.mark.parametrize("operation", ["new_batch", "start", "step", "drop"])
def test_a_model_that_raises_fails_its_batch_and_the_next_one_starts_afresh(operation: str) -> None:
    next_failure = [operation]
    worker = make_worker(FlakyModel(ENDLESS, lambda used: used in next_failure and bool(next_failure.pop())))
    broken, whole = make_pending(max_target_tokens=2), make_pending(max_target_tokens=2)
    other = make_pending()
    worker.hand_over([broken, other])
    while worker.num_segments:
        worker.exchange()

    worker.hand_over([whole])
    worker.exchange()
    worker.exchange()

    assert isinstance(other.future.exception(timeout=0), EngineError)
    assert broken.future.done()
    assert whole.future.result(timeout=0).num_steps == 2


def test_what_the_guard_did_is_answered_and_counted() -> None:
    metrics = Metrics(CollectorRegistry())
    clock = ManualClock()
    worker = Worker(LocalBatch(FaultyToyModel(num_words=40), clock), metrics=metrics, clock=clock)
    segment = make_segment(FaultyToyModel.LOOPER, 20, max_target_tokens=40, repetition_guard=True)
    pending = PendingSegment(segment=segment, priority=Priority.INTERACTIVE, admitted_at_s=0.0, deadline_s=100.0)
    worker.hand_over([pending, make_pending()])

    while worker.num_segments:
        worker.exchange()

    guard = pending.future.result(timeout=0).guard
    assert guard is not None
    assert guard.is_replaced
    assert metrics.registry.get_sample_value("mt_guard_outcomes_total", {"outcome": "replaced"}) == 1
    assert metrics.registry.get_sample_value("mt_guard_defects_total", {"kind": "repetition"}) == 1
