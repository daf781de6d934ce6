import asyncio
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, SearchConfig, SegmentResult, StageTimings
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import DeadlineExceededError, DrainingError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.fakes import FaultyToyModel, FlakyModel, GatedModel, ManualClock, ToyModel, WrappedModel, make_segment
from tests.without_gc import num_alive, without_gc

TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang
ENDLESS = ToyModel(eos_bias=-100.0)
NUM_CHARACTERS = 6  # of the text of every segment of the bench


class TickingModel(WrappedModel):
    """A step takes a second of a clock moved by hand."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        if operation == "step":
            self._clock.advance(1.0)


class SlowModel(WrappedModel):
    """Encoding takes 2 s of a clock moved by hand, a step 1 s."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self._clock.advance({"encode": 2.0, "step": 1.0}.get(operation, 0.0))


class Bench:
    """A running client with one thread unless told otherwise, its gate, its clock and its metrics."""

    def __init__(self, model: StepModel | None = None, *, clock: ManualClock | None = None, **settings: Any) -> None:
        self.model = GatedModel(model or ENDLESS)
        self.clock = clock or ManualClock()
        self.registry = CollectorRegistry()
        self.core = Worker(self.model, clock=self.clock)
        self.client = Scheduler(
            self.core,
            self.model.limits,
            SchedulingSettings(**{"num_workers": 1, **settings}),
            Metrics(self.registry),
            clock=self.clock,
        )

    def submit(
        self,
        *,
        priority: Priority = Priority.INTERACTIVE,
        deadline_s: float = math.inf,
        caller: str = "",
        **search: Any,
    ) -> Future[SegmentResult]:
        """Submit one segment."""
        segment = make_segment(7, 8, **search)
        (future,) = self.client.submit(
            [segment],
            RequestContext(priority=priority, deadline_s=deadline_s, caller=caller),
            num_characters=NUM_CHARACTERS,
        )
        return future

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric."""
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    """Return a list; the clients put into it are stopped in the end."""
    started: list[Bench] = []
    yield started
    for bench in started:
        bench.model.open()
        bench.client.stop()


@pytest.fixture
def bench(benches: list[Bench]) -> Bench:
    """Return a started bench with one thread and room for one segment in its batch and three in its queue."""
    benches.append(Bench(max_batch_segments=1, max_queue_segments=3))
    benches[0].client.start()
    return benches[0]


def test_a_segment_is_decoded(bench: Bench) -> None:
    bench.model.open()

    result = bench.submit(max_target_tokens=5).result(TIMEOUT_S)

    assert len(result.hypotheses[0].token_ids) == result.num_steps == 5


def test_a_segment_is_answered_with_the_times_it_took(benches: list[Bench]) -> None:
    clock = ManualClock()
    benches.append(bench := Bench(SlowModel(ENDLESS, clock), clock=clock))
    future = bench.submit(max_target_tokens=4)
    clock.advance(3.0)

    bench.client.start()
    bench.model.open()

    assert future.result(TIMEOUT_S).timings == StageTimings(queue_s=3.0, encode_s=2.0, decode_s=4.0)


class EncoderCounter(WrappedModel):
    """Takes down how many sources each encoder run has."""

    def __init__(self, inner: StepModel) -> None:
        super().__init__(inner)
        self.sizes: list[int] = []

    def before(self, operation: str, num_segments: int) -> None:
        if operation == "encode":
            self.sizes.append(num_segments)


def test_of_a_backlog_half_a_batch_is_encoded_together_with_those_that_join(benches: list[Bench]) -> None:
    counter = EncoderCounter(ENDLESS)
    benches.append(bench := Bench(counter, max_batch_segments=4))
    futures = [bench.submit(max_target_tokens=2 + index % 3) for index in range(24)]

    bench.client.start()
    bench.model.open()
    wait(futures, TIMEOUT_S)

    assert counter.sizes[0] == 4 + 2
    assert sum(counter.sizes) == 24
    assert len(counter.sizes) <= 16  # without a backlog each segment would be encoded as it joins


def test_without_a_backlog_nothing_is_encoded_before_it_joins(benches: list[Bench]) -> None:
    counter = EncoderCounter(ENDLESS)
    benches.append(bench := Bench(counter, max_batch_segments=4, num_workers=2))
    futures = [bench.submit(max_target_tokens=3) for _ in range(7)]

    bench.client.start()
    bench.model.open()
    wait(futures, TIMEOUT_S)

    assert sorted(counter.sizes) == [3, 4]


def test_a_segment_that_was_encoded_ahead_waited_until_it_joined(benches: list[Bench]) -> None:
    clock = ManualClock()
    benches.append(bench := Bench(SlowModel(ENDLESS, clock), clock=clock, max_batch_segments=2))
    futures = [bench.submit(max_target_tokens=4) for _ in range(3)]

    bench.client.start()
    bench.model.open()

    timings = [future.result(TIMEOUT_S).timings for future in futures]
    assert timings[0] == timings[1] == StageTimings(queue_s=0.0, encode_s=2.0, decode_s=4.0)
    assert timings[2] == StageTimings(queue_s=4.0, encode_s=2.0, decode_s=4.0)
    assert bench.metric("dragoman_encode_duration_seconds_count") == 1
    assert bench.metric("dragoman_queue_wait_seconds_sum", priority="interactive") == 4.0


def test_what_was_encoded_of_a_segment_that_is_cancelled_is_forgotten(benches: list[Bench]) -> None:
    benches.append(bench := Bench(ToyModel(eos_bias=-100.0, max_target_tokens=5000), max_batch_segments=2))
    futures = [bench.submit(max_target_tokens=5000) for _ in range(3)]
    bench.client.start()
    bench.model.wait_for_step()
    assert len(bench.core.encoded) == 1

    assert futures[2].cancel()
    while bench.core.encoded:
        bench.model.let_pass()
        bench.model.wait_for_step()

    assert bench.model.step_sizes[-1] == 2


def test_a_segment_cancelled_before_its_start_is_not_encoded(benches: list[Bench]) -> None:
    benches.append(bench := Bench(FlakyModel(ENDLESS, lambda _: True)))
    assert bench.submit().cancel()

    bench.client.start()

    assert bench.client.drain(TIMEOUT_S)
    assert bench.metric("dragoman_batch_failures_total") == 0


def test_what_the_guard_did_is_answered_and_counted(benches: list[Bench]) -> None:
    benches.append(bench := Bench(FaultyToyModel(num_words=40)))
    looping = make_segment(FaultyToyModel.LOOPER, 20, max_target_tokens=40, repetition_guard=True)
    future, _ = bench.client.submit([looping, make_segment(7, 8)])
    bench.client.start()
    bench.model.open()

    guard = future.result(TIMEOUT_S).guard

    assert guard is not None
    assert guard.is_replaced
    assert bench.metric("dragoman_guard_outcomes_total", outcome="replaced") == 1
    assert bench.metric("dragoman_guard_defects_total", kind="repetition") == 1


def test_a_warm_up_decodes_in_every_batch_and_is_neither_counted_nor_learned_from(benches: list[Bench]) -> None:
    benches.append(bench := Bench(num_workers=2))
    bench.model.open()

    results = bench.client.warm_up([make_segment(7, max_target_tokens=60), make_segment(8, max_target_tokens=50)])

    assert [result.num_steps for result in results] == [60, 50]
    assert bench.model.step_sizes.count(1) == 2 * (60 + 10)
    assert bench.model.step_sizes.count(2) == 2 * 50
    assert bench.metric("dragoman_segments_total", outcome="ok") == 0
    assert bench.metric("dragoman_queue_wait_seconds_count", priority="interactive") == 0
    assert bench.client._forecast.request_cost([make_segment(7)]).most_steps == 2


def test_a_warm_up_that_fails_says_so(benches: list[Bench]) -> None:
    benches.append(bench := Bench(FlakyModel(ENDLESS, lambda used: used == "step")))
    bench.model.open()

    with pytest.raises(EngineError):
        bench.client.warm_up([make_segment(7)])


def test_what_an_answered_segment_held_is_freed_without_the_garbage_collector(bench: Bench) -> None:
    bench.model.open()
    with without_gc():
        before = num_alive(QueuedSegment)
        for _ in range(3):
            bench.submit(max_target_tokens=5).result(TIMEOUT_S)
        bench.client.stop()  # its threads have let go of what they did last

        assert num_alive(QueuedSegment) == before


def test_a_new_segment_joins_a_batch_that_has_room(benches: list[Bench]) -> None:
    bench = Bench(num_workers=2)
    benches.append(bench)
    bench.client.submit([make_segment(7, 8, max_target_tokens=200)] * 3)
    bench.client.start()
    bench.model.wait_for_step()
    bench.model.wait_for_step()
    assert sorted(bench.model.step_sizes) == [1, 2]

    bench.submit(max_target_tokens=200)
    bench.model.open()

    assert bench.client.drain(TIMEOUT_S)
    assert max(bench.model.step_sizes) == 2


def test_a_new_segment_goes_to_the_batch_whose_step_ends_first(benches: list[Bench]) -> None:
    bench = Bench(num_workers=2)
    benches.append(bench)
    bench.client.start()
    for _ in range(2):
        bench.submit(max_target_tokens=200)
        bench.model.wait_for_step()
    bench.clock.advance(1.0)  # both steps take long

    third = bench.submit(max_target_tokens=2)
    assert not any(bench.client._select(batch) for batch in bench.client._batches)
    bench.model.open()

    assert third.result(TIMEOUT_S).num_steps == 2


def test_a_full_queue_rejects_at_once(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    waiting = [bench.submit() for _ in range(3)]

    with pytest.raises(OverloadedError, match="3 of 3 segments"):
        bench.submit()

    assert not any(future.done() for future in waiting)
    assert bench.metric("dragoman_rejected_requests_total", reason="overloaded") == 1


def test_a_request_larger_than_the_queue_is_rejected_whole(bench: Bench) -> None:
    with pytest.raises(OverloadedError):
        bench.client.submit([make_segment(7)] * 4)

    assert bench.metric("dragoman_queue_segments") == 0


def test_a_request_without_segments_needs_no_answer(bench: Bench) -> None:
    assert bench.client.submit([]) == []


def test_a_segment_the_model_cannot_take_is_not_admitted(bench: Bench) -> None:
    with pytest.raises(ValueError, match="source tokens 101"):
        bench.client.submit([make_segment(*[7] * 100)])


def test_a_new_segment_joins_the_running_batch(benches: list[Bench]) -> None:
    benches.append(bench := Bench())
    bench.client.start()
    first = bench.submit(max_target_tokens=200)
    bench.model.wait_for_step()
    second = bench.submit(max_target_tokens=2)

    bench.model.let_pass()
    bench.model.pass_until(2)
    bench.model.let_pass(2)

    assert second.result(TIMEOUT_S).num_steps == 2
    assert not first.done()


def test_idle_threads_share_a_group(benches: list[Bench]) -> None:
    benches.append(bench := Bench(num_workers=2))
    futures = bench.client.submit([make_segment(7)] * 8)

    bench.client.start()
    bench.model.wait_for_step()
    bench.model.wait_for_step()
    bench.model.open()

    wait(futures, TIMEOUT_S)
    assert bench.model.step_sizes[:2] == [4, 4]


def test_interactive_segments_are_served_first(bench: Bench) -> None:
    order: list[str] = []
    bench.submit(max_target_tokens=1)
    bench.model.wait_for_step()
    bulk = bench.submit(priority=Priority.BULK)
    bulk.add_done_callback(lambda _: order.append("bulk"))
    bench.submit().add_done_callback(lambda _: order.append("interactive"))

    bench.model.open()

    assert bench.client.drain(TIMEOUT_S)
    assert order == ["interactive", "bulk"]


def test_cancelling_a_waiting_segment_frees_its_place_at_once(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    waiting = [bench.submit() for _ in range(3)]

    assert waiting[1].cancel()

    assert bench.metric("dragoman_queue_segments") == 2
    assert bench.metric("dragoman_queue_tokens") == 6
    bench.submit()


def test_cancelling_a_running_segment_lets_the_next_one_in(benches: list[Bench]) -> None:
    benches.append(bench := Bench(ToyModel(eos_bias=-100.0, max_target_tokens=5000), max_batch_segments=1))
    bench.client.start()
    running = bench.submit(max_target_tokens=5000)
    bench.model.wait_for_step()
    waiting = bench.submit(max_target_tokens=1)

    assert running.cancel()
    bench.model.open()

    assert waiting.result(TIMEOUT_S).num_steps == 1
    assert len(bench.model.step_sizes) < 5000
    assert bench.metric("dragoman_segments_total", outcome="cancelled") == 1


def test_threads_that_wait_for_several_futures_learn_of_a_cancellation(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    waiting = bench.submit()
    canceller = threading.Thread(target=waiting.cancel)

    canceller.start()

    assert wait([waiting], TIMEOUT_S).done == {waiting}
    canceller.join()


async def test_cancelling_an_asyncio_task_frees_the_place(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    waiting = asyncio.wrap_future(bench.submit())

    waiting.cancel()
    await asyncio.sleep(0)  # one round of the loop, in which asyncio hands the cancellation on

    assert waiting.cancelled()
    assert bench.metric("dragoman_queue_segments") == 0


def test_a_segment_that_comes_again_is_answered_without_decoding(benches: list[Bench]) -> None:
    benches.append(bench := Bench(ToyModel(), max_cached_bytes=10_000))
    bench.client.start()
    bench.model.open()
    first = bench.submit().result(TIMEOUT_S)
    num_steps = len(bench.model.step_sizes)

    again, other = bench.client.submit([make_segment(7, 8), make_segment(7, 9)])

    assert again.done()
    assert again.result(TIMEOUT_S) == replace(first, timings=StageTimings())
    assert other.result(TIMEOUT_S).hypotheses
    assert bench.client.drain(TIMEOUT_S)
    assert set(bench.model.step_sizes[num_steps:]) == {1}
    lookups = [bench.metric("dragoman_result_cache_lookups_total", outcome=outcome) for outcome in ("hit", "miss")]
    assert lookups == [1, 2]
    assert 0 < bench.metric("dragoman_result_cache_bytes") <= 10_000


def test_nothing_is_kept_unless_asked_for(benches: list[Bench]) -> None:
    benches.append(bench := Bench(ToyModel()))
    bench.client.start()
    bench.model.open()
    bench.submit().result(TIMEOUT_S)
    num_steps = len(bench.model.step_sizes)

    assert bench.submit().result(TIMEOUT_S).hypotheses

    assert len(bench.model.step_sizes) == 2 * num_steps
    assert bench.metric("dragoman_result_cache_bytes") == 0


def test_known_segments_are_answered_while_the_queue_is_full_and_not_once_it_drains(benches: list[Bench]) -> None:
    benches.append(bench := Bench(ToyModel(), max_cached_bytes=10_000, max_batch_segments=1, max_queue_segments=1))
    bench.client.start()
    bench.model.let_pass()
    known = bench.submit(max_target_tokens=1).result(TIMEOUT_S)
    bench.model.wait_for_step()
    bench.submit(max_target_tokens=2)
    bench.model.wait_for_step()
    bench.client.submit([make_segment(9)])
    with pytest.raises(OverloadedError):
        bench.client.submit([make_segment(9, 9)])

    assert bench.submit(max_target_tokens=1).result(TIMEOUT_S).hypotheses == known.hypotheses

    assert not bench.client.drain(0)
    with pytest.raises(DrainingError):
        bench.submit(max_target_tokens=1)


def test_a_deadline_may_pass_in_the_queue(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    late = bench.submit(deadline_s=5.0)

    bench.clock.advance(5.0)
    bench.model.let_pass()

    with pytest.raises(DeadlineExceededError, match="queue"):
        late.result(TIMEOUT_S)


def test_a_deadline_may_pass_between_steps(bench: Bench) -> None:
    late = bench.submit(deadline_s=5.0)
    bench.model.wait_for_step()

    bench.clock.advance(5.0)
    bench.model.let_pass()

    with pytest.raises(DeadlineExceededError, match="decode"):
        late.result(TIMEOUT_S)
    assert bench.client.drain(TIMEOUT_S)
    assert bench.metric("dragoman_segments_total", outcome="deadline") == 1


SIX_STEPS: dict[str, Any] = {"max_target_tokens": 6}
ALONE_S = 6.0
WAIT_S = 11 * 6.0  # for the ten that wait, and their own place in the only place
MARGIN = 2.5
ENOUGH_S = ALONE_S + MARGIN * WAIT_S + 5.0


@pytest.fixture
def experienced(benches: list[Bench]) -> Bench:
    """Return a bench that has seen many segments of six steps, a second each, and stands still with ten that wait."""
    clock = ManualClock()
    bench = Bench(TickingModel(ENDLESS, clock), clock=clock, max_batch_segments=1)
    benches.append(bench)
    bench.client.start()
    taught = [bench.submit(**SIX_STEPS) for _ in range(60)]
    bench.model.let_pass(60 * 6)
    wait(taught, TIMEOUT_S)
    for _ in range(60 * 6):
        bench.model.wait_for_step()
    bench.submit(**SIX_STEPS)
    bench.model.wait_for_step()
    for _ in range(10):
        bench.submit(**SIX_STEPS)
    return bench


def test_an_answer_that_the_backlog_makes_too_late_is_rejected_with_the_time_to_come_back(experienced: Bench) -> None:
    with pytest.raises(OverloadedError, match="ms of work that the deadline allows") as rejection:
        experienced.submit(deadline_s=experienced.clock() + 30.0, **SIX_STEPS)

    assert rejection.value.limit == 30_000
    assert rejection.value.retry_after_s == pytest.approx(WAIT_S - (30 - ALONE_S) / MARGIN, rel=0.05)
    assert experienced.metric("dragoman_rejected_requests_total", reason="deadline") == 1
    assert experienced.metric("dragoman_deadline_misses_total", stage="admission") == 1
    assert experienced.metric("dragoman_queue_segments") == 10


def test_an_answer_that_even_an_idle_server_would_give_too_late_is_rejected(experienced: Bench) -> None:
    with pytest.raises(DeadlineExceededError, match="admission") as rejection:
        experienced.submit(deadline_s=experienced.clock() + 3.0, **SIX_STEPS)

    assert rejection.value.allowed_s == pytest.approx(3.0)
    assert rejection.value.needed_s == pytest.approx(ALONE_S + MARGIN * WAIT_S, rel=0.05)


def reject_early(bench: Bench, *, within_s: float) -> None:
    """Ask to be admitted with a text like those of the others."""
    bench.client.reject_early(
        NUM_CHARACTERS, SearchConfig(**SIX_STEPS), RequestContext(deadline_s=bench.clock() + within_s)
    )


@pytest.fixture
def rejecting(experienced: Bench) -> Bench:
    """Return the experienced bench just after it has rejected a request known in full."""
    with pytest.raises(OverloadedError):
        experienced.submit(deadline_s=experienced.clock() + 30.0, **SIX_STEPS)
    return experienced


def test_a_request_is_rejected_before_its_texts_are_read_if_others_like_it_were(rejecting: Bench) -> None:
    with pytest.raises(OverloadedError, match="ms of work that the deadline allows") as rejection:
        reject_early(rejecting, within_s=30.0)

    assert rejection.value.retry_after_s == pytest.approx(WAIT_S - (30 - ALONE_S) / MARGIN, rel=0.05)
    assert rejecting.metric("dragoman_rejected_requests_total", reason="deadline") == 2


def test_a_request_with_time_enough_is_not_rejected_by_an_estimate(rejecting: Bench) -> None:
    reject_early(rejecting, within_s=ENOUGH_S)


def test_a_request_too_large_for_its_deadline_is_not_rejected_by_an_estimate(rejecting: Bench) -> None:
    reject_early(rejecting, within_s=3.0)


def test_no_request_is_rejected_by_an_estimate_unless_others_are_rejected(experienced: Bench) -> None:
    reject_early(experienced, within_s=30.0)


def test_no_request_is_rejected_by_an_estimate_long_after_others_were_rejected(rejecting: Bench) -> None:
    rejecting.clock.advance(1.5)

    reject_early(rejecting, within_s=30.0)


def test_there_must_be_time_for_a_wait_that_takes_longer_than_expected(experienced: Bench) -> None:
    with pytest.raises(OverloadedError):
        experienced.submit(deadline_s=experienced.clock() + WAIT_S + ALONE_S + 10.0, **SIX_STEPS)


def test_a_request_that_need_not_wait_needs_no_time_to_spare(benches: list[Bench]) -> None:
    clock = ManualClock()
    benches.append(bench := Bench(TickingModel(ENDLESS, clock), clock=clock))
    bench.client.start()
    bench.model.open()
    for _ in range(40):
        bench.submit(**SIX_STEPS).result(TIMEOUT_S)

    accepted = bench.submit(deadline_s=clock() + ALONE_S + 0.5, **SIX_STEPS)

    assert accepted.result(TIMEOUT_S).num_steps == 6


def test_an_answer_expected_in_time_is_given_in_time(experienced: Bench) -> None:
    accepted = experienced.submit(deadline_s=experienced.clock() + ENOUGH_S, **SIX_STEPS)

    experienced.model.open()

    assert accepted.result(TIMEOUT_S).num_steps == 6


def test_a_new_caller_s_answer_is_expected_after_its_turn_not_after_the_whole_backlog(experienced: Bench) -> None:
    accepted = experienced.submit(deadline_s=experienced.clock() + 40.0, caller="other", **SIX_STEPS)

    experienced.model.open()

    assert accepted.result(TIMEOUT_S).num_steps == 6


def test_after_a_long_silence_no_request_is_rejected_for_what_was_learned_before(experienced: Bench) -> None:
    experienced.clock.advance(11.0)

    assert not experienced.submit(deadline_s=experienced.clock() + 3.0, **SIX_STEPS).done()


def test_how_far_an_expectation_was_off_is_recorded(experienced: Bench) -> None:
    def total(part: str) -> float:
        name = f"dragoman_prediction_error_seconds_{part}"
        return sum(experienced.metric(name, direction=direction) for direction in ("early", "late"))

    count, total_s = total("count"), total("sum")
    experienced.model.open()

    assert experienced.client.drain(TIMEOUT_S)

    assert total("count") == count + 11
    assert total("sum") - total_s < 11 * 6


def test_a_deadline_that_has_passed_is_rejected_at_once(bench: Bench) -> None:
    with pytest.raises(DeadlineExceededError, match="admission") as rejection:
        bench.submit(deadline_s=0.0)

    assert (rejection.value.needed_s, rejection.value.allowed_s) == (0.0, 0.0)

    assert bench.metric("dragoman_deadline_misses_total", stage="admission") == 1
    assert bench.metric("dragoman_queue_segments") == 0


def test_deadlines_are_counted_where_they_pass(bench: Bench) -> None:
    bench.submit(deadline_s=5.0)
    bench.model.wait_for_step()
    bench.submit(deadline_s=5.0)

    bench.clock.advance(5.0)
    bench.model.open()

    assert bench.client.drain(TIMEOUT_S)
    assert bench.metric("dragoman_deadline_misses_total", stage="decode") == 1
    assert bench.metric("dragoman_deadline_misses_total", stage="queue") == 1


def test_cancellations_are_counted_where_they_happen(bench: Bench) -> None:
    running = bench.submit()
    bench.model.wait_for_step()
    waiting = bench.submit()

    assert waiting.cancel()
    assert running.cancel()

    assert bench.metric("dragoman_cancelled_segments_total", stage="queue") == 1
    assert bench.metric("dragoman_cancelled_segments_total", stage="decode") == 1


def test_one_small_request_does_not_wait_for_another_caller_s_many(benches: list[Bench]) -> None:
    order: list[str] = []
    benches.append(bench := Bench(max_batch_segments=1))
    bench.client.start()
    bench.submit(max_target_tokens=1)
    bench.model.wait_for_step()
    for future in bench.client.submit([make_segment(7, max_target_tokens=1)] * 20, RequestContext(caller="much")):
        future.add_done_callback(lambda _: order.append("much"))
    bench.submit(caller="little", max_target_tokens=1).add_done_callback(lambda _: order.append("little"))

    bench.model.open()

    assert bench.client.drain(TIMEOUT_S)
    assert order.index("little") <= 1


def test_a_caller_may_not_fill_the_queue_with_several_requests(benches: list[Bench]) -> None:
    benches.append(bench := Bench(max_queue_segments=4, max_caller_queue_share=0.5))
    for _ in range(2):
        bench.submit(caller="much")

    with pytest.raises(OverloadedError, match="2 of 2 segments of this caller"):
        bench.submit(caller="much")

    bench.submit(caller="other")


def test_what_is_in_the_batches_is_shown_until_the_client_stops(benches: list[Bench]) -> None:
    benches.append(bench := Bench())
    bench.client.start()
    bench.client.submit([make_segment(7, beam_size=3), make_segment(7, 8, beam_size=2)])
    bench.model.wait_for_step()

    assert bench.metric("dragoman_batch_live_segments") == 2
    assert bench.metric("dragoman_batch_live_rows") == 5
    bench.model.open()
    bench.client.stop(TIMEOUT_S)
    assert bench.metric("dragoman_batch_live_segments") == bench.metric("dragoman_batch_live_rows") == 0


def test_every_step_is_in_the_figures(benches: list[Bench]) -> None:
    benches.append(bench := Bench())
    bench.client.start()
    bench.model.open()
    bench.client.submit([make_segment(7, max_target_tokens=30, min_target_tokens=30)])

    assert bench.client.drain(TIMEOUT_S)

    names = ("dragoman_decoder_steps_total", "dragoman_step_duration_seconds_count", "dragoman_batch_segments_count")
    assert [bench.metric(name) for name in names] == [len(bench.model.step_sizes)] * 3 == [30] * 3


def test_padding_of_rows_and_sources_is_recorded(benches: list[Bench]) -> None:
    benches.append(bench := Bench())
    bench.client.start()
    bench.model.let_pass()
    bench.client.submit(
        [make_segment(7, beam_size=1, max_target_tokens=1), make_segment(7, 8, 9, beam_size=3, max_target_tokens=1)]
    )

    assert bench.client.drain(TIMEOUT_S)

    assert bench.metric("dragoman_step_padding_share_sum", part="rows") == pytest.approx(1 - 4 / 6)
    assert bench.metric("dragoman_step_padding_share_sum", part="sources") == pytest.approx(1 - 6 / 8)


def test_a_segment_without_a_deadline_is_never_given_up(benches: list[Bench]) -> None:
    benches.append(bench := Bench())
    bench.client.start()
    patient = bench.submit()
    bench.model.wait_for_step()

    bench.clock.advance(1e9)
    bench.model.open()

    assert patient.result(TIMEOUT_S).hypotheses


def test_a_broken_batch_does_not_break_the_next(benches: list[Bench]) -> None:
    failures = ["step"]
    benches.append(bench := Bench(FlakyModel(ENDLESS, lambda used: used in failures and bool(failures.pop()))))
    bench.client.start()
    bench.model.open()

    with pytest.raises(EngineError):
        bench.submit().result(TIMEOUT_S)

    assert bench.submit(max_target_tokens=2).result(TIMEOUT_S).num_steps == 2


def test_draining_answers_everything_and_rejects_new_segments(bench: Bench) -> None:
    futures = [bench.submit(max_target_tokens=3) for _ in range(3)]
    bench.model.open()

    assert bench.client.drain(TIMEOUT_S)

    assert [future.result(0).num_steps for future in futures] == [3, 3, 3]
    with pytest.raises(DrainingError):
        bench.submit()


def test_draining_says_if_time_ran_out(bench: Bench) -> None:
    bench.submit()

    assert not bench.client.drain(0.0)


def test_stopping_answers_what_is_left_even_if_the_model_is_stuck(bench: Bench) -> None:
    stuck = bench.submit()
    bench.model.wait_for_step()
    waiting = bench.submit()

    bench.client.stop(timeout_s=0.0)

    assert isinstance(stuck.exception(0), DrainingError)
    assert isinstance(waiting.exception(0), DrainingError)
    assert bench.client.drain(0.0)


def test_stopping_ends_the_threads(bench: Bench) -> None:
    bench.submit()
    bench.model.open()

    bench.client.stop(TIMEOUT_S)

    assert not any(thread.name.startswith(("decode-", "engine", "commands")) for thread in threading.enumerate())


def test_a_client_that_never_started_can_be_stopped() -> None:
    bench = Bench()
    waiting = bench.submit()

    bench.client.stop()

    assert isinstance(waiting.exception(0), DrainingError)


def test_every_metric_of_a_segment_is_recorded(bench: Bench) -> None:
    bench.model.open()
    bench.submit(max_target_tokens=4).result(TIMEOUT_S)

    assert bench.client.drain(TIMEOUT_S)

    assert bench.metric("dragoman_queue_wait_seconds_count", priority="interactive") == 1
    for stage in ("dragoman_encode_duration", "dragoman_decode_duration"):
        assert bench.metric(f"{stage}_seconds_count") == 1
    assert bench.metric("dragoman_prediction_error_seconds_count", direction="early") == 1
    assert bench.metric("dragoman_step_duration_seconds_count") == bench.metric("dragoman_decoder_steps_total") == 4
    assert bench.metric("dragoman_batch_padded_tokens_sum") == bench.metric("dragoman_source_tokens_total") == 3
    assert bench.metric("dragoman_target_tokens_total") == 4
    assert bench.metric("dragoman_segments_total", outcome="ok") == 1


def test_the_queue_gauges_of_several_models_add_up() -> None:
    metrics = Metrics(CollectorRegistry())
    clients = [Scheduler(Worker(ENDLESS), ENDLESS.limits, SchedulingSettings(), metrics) for _ in range(2)]

    for client in clients:
        client.submit([make_segment(7)])

    assert metrics.registry.get_sample_value("dragoman_queue_segments") == 2
    assert metrics.registry.get_sample_value("dragoman_queue_work_tokens") == 2 * (2 + 4 * 2)
    for client in clients:
        client.stop()
