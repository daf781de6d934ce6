import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import SearchConfig, SegmentResult, StageTimings
from dragoman_service.errors import DeadlineExceededError, DrainingError, EngineError, OverloadedError, QueueDelayError
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.scheduling.core_shares import CoreShares
from dragoman_service.scheduling.scheduler import Scheduler, wait_for_results
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.background_loop import background_loop
from tests.fakes import CACHE_BYTES, FaultyToyModel, FlakyModel, TimedModel, ToyModel, make_segment
from tests.mortal_worker import TIMEOUT_S
from tests.unit.scheduling.scheduler_bench import ENDLESS, MANY_STEPS, NUM_CHARACTERS, Bench
from tests.without_gc import num_alive, without_gc

MakeBench = Callable[..., Bench]


def timed_bench(make_bench: MakeBench, *, encode_s: float = 2.0, **settings: Any) -> Bench:
    """Return a bench whose clock is advanced by its model."""
    model = TimedModel(ENDLESS, encode_s=encode_s)
    return make_bench(model, clock=model.clock, **settings)


def test_results_have_timings_and_every_metric_of_a_segment_is_recorded(make_bench: MakeBench) -> None:
    bench = timed_bench(make_bench)
    future = bench.submit(4)
    bench.clock.advance(3.0)

    bench.start(is_open=True)
    result = future.result(TIMEOUT_S)

    assert len(result.hypotheses[0].token_ids) == result.num_steps == 4
    assert result.timings == StageTimings(queue_s=3.0, encode_s=2.0, decode_s=4.0)
    assert bench.scheduler.drain(TIMEOUT_S)
    assert bench.metric("queue_wait_seconds_sum", priority="interactive") == 3.0
    assert bench.metric("encode_duration_seconds_sum") == 2.0
    assert bench.metric("decode_duration_seconds_sum") == 4.0
    assert bench.metric("prediction_error_seconds_sum", direction="late") == 9.0
    assert bench.metric("step_duration_seconds_count") == bench.metric("decoder_steps_total") == 4
    assert bench.metric("batch_padded_tokens_sum") == bench.metric("source_tokens_total") == 3
    assert bench.metric("target_tokens_total") == 4
    assert bench.metric("segments_total", outcome="ok") == 1
    assert bench.scheduler.cache_bytes == CACHE_BYTES


def test_backlog_is_encoded_ahead_together_with_joining_segments(make_bench: MakeBench) -> None:
    bench = make_bench(model := TimedModel(ENDLESS), max_batch_segments=4)
    futures = [bench.submit(2 + index % 3) for index in range(24)]

    bench.start(is_open=True)
    wait(futures, TIMEOUT_S)

    assert model.encoded[0] == 4 + 2
    assert sum(model.encoded) == 24
    assert len(model.encoded) <= 16  # without encoding ahead, each segment would be encoded as it joins


def test_nothing_is_encoded_ahead_without_a_backlog(make_bench: MakeBench) -> None:
    bench = make_bench(model := TimedModel(ENDLESS), max_batch_segments=4, num_workers=2)
    futures = [bench.submit(3) for _ in range(7)]

    bench.start(is_open=True)
    wait(futures, TIMEOUT_S)

    assert sorted(model.encoded) == [3, 4]


def test_busy_model_leaves_a_core_to_another(make_bench: MakeBench) -> None:
    cores = CoreShares(2)
    cores.set_busy("other", 2)
    bench = make_bench(model := TimedModel(ENDLESS), cores=cores, num_workers=2)
    futures = [bench.submit(3) for _ in range(7)]

    bench.start(is_open=True)
    wait(futures, TIMEOUT_S)

    assert model.encoded == [7]


def test_segment_that_was_encoded_ahead_is_queued_until_it_joins(make_bench: MakeBench) -> None:
    bench = timed_bench(make_bench, max_batch_segments=2)
    futures = [bench.submit(4) for _ in range(3)]

    bench.start(is_open=True)

    timings = [future.result(TIMEOUT_S).timings for future in futures]
    assert timings[0] == timings[1] == StageTimings(queue_s=0.0, encode_s=2.0, decode_s=4.0)
    assert timings[2] == StageTimings(queue_s=4.0, encode_s=2.0, decode_s=4.0)


def test_cancelling_forgets_what_was_encoded_ahead(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch_segments=2)
    futures = [bench.submit(MANY_STEPS) for _ in range(3)]
    bench.start()
    bench.model.wait_for_step()
    assert len(bench.worker.encoded) == 1

    assert futures[2].cancel()
    while bench.worker.encoded:
        bench.model.let_pass()
        bench.model.wait_for_step()

    assert bench.model.step_sizes[-1] == 2


def test_segment_cancelled_before_the_start_is_not_encoded(make_bench: MakeBench) -> None:
    bench = make_bench(FlakyModel(ENDLESS, lambda _: True))
    assert bench.submit().cancel()

    bench.start()

    assert bench.scheduler.drain(TIMEOUT_S)
    assert bench.metric("batch_failures_total") == 0


def test_degeneration_is_reported_and_counted(make_bench: MakeBench) -> None:
    bench = make_bench(FaultyToyModel(num_words=40)).start(is_open=True)
    looping = make_segment(FaultyToyModel.LOOPER, 20, max_target_tokens=40, repetition_guard=True)
    future, _ = bench.scheduler.submit([looping, make_segment(7, 8)])

    degeneration = future.result(TIMEOUT_S).degeneration

    assert degeneration is not None
    assert degeneration.is_replaced
    assert bench.metric("redecodes_total", outcome="replaced") == 1
    assert bench.metric("degenerations_total", kind="repetition") == 1


def test_warm_up_decodes_in_each_batch_and_is_neither_counted_nor_learned_from(make_bench: MakeBench) -> None:
    bench = make_bench(num_workers=2)
    bench.model.open()
    segment = make_segment(7)
    cost = bench.scheduler.expected_decode_cost([segment])

    results = bench.scheduler.warm_up([make_segment(7, max_target_tokens=60), make_segment(8, max_target_tokens=50)])

    assert [result.num_steps for result in results] == [60, 50]
    assert bench.model.step_sizes.count(1) == 2 * (60 + 10)
    assert bench.model.step_sizes.count(2) == 2 * 50
    assert bench.metric("segments_total", outcome="ok") == 0
    assert bench.metric("queue_wait_seconds_count", priority="interactive") == 0
    assert bench.scheduler.expected_decode_cost([segment]) == cost


def test_failed_warm_up_raises(make_bench: MakeBench) -> None:
    bench = make_bench(FlakyModel(ENDLESS, lambda operation: operation == "step"))
    bench.model.open()

    with pytest.raises(EngineError):
        bench.scheduler.warm_up([make_segment(7)])


def test_resolved_segments_are_freed_without_the_garbage_collector(bench: Bench) -> None:
    bench.model.open()
    with without_gc():
        before = num_alive(QueuedSegment)
        for _ in range(3):
            bench.submit(5).result(TIMEOUT_S)
        bench.scheduler.stop()  # its threads release their last segments

        assert num_alive(QueuedSegment) == before


def test_new_segment_joins_the_batch_with_room(make_bench: MakeBench) -> None:
    bench = make_bench(num_workers=2)
    bench.scheduler.submit([make_segment(7, 8, max_target_tokens=200)] * 3)
    bench.start()
    bench.model.wait_for_step()
    bench.model.wait_for_step()
    assert sorted(bench.model.step_sizes) == [1, 2]

    bench.submit(200)
    bench.model.open()

    assert bench.scheduler.drain(TIMEOUT_S)
    assert max(bench.model.step_sizes) == 2


def test_no_segment_is_sent_to_a_batch_in_a_long_step(make_bench: MakeBench) -> None:
    bench = make_bench(num_workers=2).start()
    for _ in range(2):
        bench.submit(200)
        bench.model.wait_for_step()
    bench.clock.advance(1.0)

    third = bench.submit(2)
    dispatcher = bench.scheduler._dispatcher
    assert not any(dispatcher._select(batch) for batch in dispatcher._batches)
    bench.model.open()

    assert third.result(TIMEOUT_S).num_steps == 2


def test_new_segment_joins_the_running_batch(make_bench: MakeBench) -> None:
    bench = make_bench().start()
    first = bench.submit(200)
    bench.model.wait_for_step()
    second = bench.submit(2)

    bench.model.let_pass()
    bench.model.pass_until(2)
    bench.model.let_pass(2)

    assert second.result(TIMEOUT_S).num_steps == 2
    assert not first.done()


def test_idle_batches_share_a_request(make_bench: MakeBench) -> None:
    bench = make_bench(num_workers=2)
    futures = bench.scheduler.submit([make_segment(7)] * 8)

    bench.start()
    bench.model.wait_for_step()
    bench.model.wait_for_step()
    bench.model.open()

    wait(futures, TIMEOUT_S)
    assert bench.model.step_sizes[:2] == [4, 4]


def test_full_queue_rejects_a_request_as_a_whole_and_immediately(bench: Bench) -> None:
    assert bench.scheduler.submit([]) == []
    bench.submit()
    bench.model.wait_for_step()
    queued = [bench.submit() for _ in range(2)]

    with pytest.raises(OverloadedError) as rejection:
        bench.scheduler.submit([make_segment(7)] * 2)

    assert (rejection.value.queued, rejection.value.limit, rejection.value.unit) == (2, 3, "segments")
    assert not any(future.done() for future in queued)
    assert bench.metric("queue_segments") == 2
    assert bench.metric("rejected_requests_total", reason="overloaded") == 1


def test_segment_beyond_the_limits_of_the_model_is_not_admitted(bench: Bench) -> None:
    with pytest.raises(ValueError, match="source tokens is 101"):
        bench.scheduler.submit([make_segment(*[7] * 100)])


def test_cancelling_a_queued_segment_frees_its_room_at_once(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    queued = [bench.submit() for _ in range(3)]

    assert queued[1].cancel()

    assert bench.metric("queue_segments") == 2
    assert bench.metric("queue_tokens") == 6
    assert bench.metric("cancelled_segments_total", stage="queue") == 1
    bench.submit()


def test_cancelling_a_running_segment_lets_the_next_one_join(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch_segments=1).start()
    running = bench.submit(MANY_STEPS)
    bench.model.wait_for_step()
    queued = bench.submit(1)

    assert running.cancel()
    bench.model.open()

    assert queued.result(TIMEOUT_S).num_steps == 1
    assert len(bench.model.step_sizes) < MANY_STEPS
    assert bench.metric("segments_total", outcome="cancelled") == 1
    assert bench.metric("cancelled_segments_total", stage="decode") == 1


def test_cancelling_wakes_threads_that_wait_for_several_futures(bench: Bench) -> None:
    bench.submit()
    bench.model.wait_for_step()
    queued = bench.submit()
    canceller = threading.Thread(target=queued.cancel)

    canceller.start()

    assert wait([queued], TIMEOUT_S).done == {queued}
    canceller.join()


def test_repeated_segment_is_answered_from_the_cache(make_bench: MakeBench) -> None:
    bench = make_bench(ToyModel(), max_cached_bytes=10_000).start(is_open=True)
    first = bench.submit().result(TIMEOUT_S)
    num_steps = len(bench.model.step_sizes)

    again, other = bench.scheduler.submit([make_segment(7, 8), make_segment(7, 9)])

    assert again.done()
    assert again.result(TIMEOUT_S) == replace(first, timings=StageTimings())
    assert other.result(TIMEOUT_S).hypotheses
    assert bench.scheduler.drain(TIMEOUT_S)
    assert set(bench.model.step_sizes[num_steps:]) == {1}
    assert [bench.metric("result_cache_lookups_total", outcome=outcome) for outcome in ("hit", "miss")] == [1, 2]
    assert 0 < bench.metric("result_cache_bytes") <= 10_000


def test_results_are_not_cached_by_default(make_bench: MakeBench) -> None:
    bench = make_bench(ToyModel()).start(is_open=True)
    bench.submit().result(TIMEOUT_S)
    num_steps = len(bench.model.step_sizes)

    assert bench.submit().result(TIMEOUT_S).hypotheses

    assert len(bench.model.step_sizes) == 2 * num_steps
    assert bench.metric("result_cache_bytes") == 0


def test_cached_segment_is_answered_while_the_queue_is_full_but_not_while_draining(make_bench: MakeBench) -> None:
    bench = make_bench(ToyModel(), max_cached_bytes=10_000, max_batch_segments=1, max_queue_segments=1).start()
    bench.model.let_pass()
    cached = bench.submit(1).result(TIMEOUT_S)
    bench.model.wait_for_step()
    bench.submit(2)
    bench.model.wait_for_step()
    bench.scheduler.submit([make_segment(9)])
    with pytest.raises(OverloadedError):
        bench.scheduler.submit([make_segment(9, 9)])

    assert bench.submit(1).result(TIMEOUT_S).hypotheses == cached.hypotheses

    assert not bench.scheduler.drain(0)
    with pytest.raises(DrainingError):
        bench.submit(1)


def test_deadlines_can_pass_in_the_queue_and_between_steps(bench: Bench) -> None:
    running = bench.submit(timeout_s=5.0)
    bench.model.wait_for_step()
    queued, without_deadline = bench.submit(timeout_s=5.0), bench.submit()

    bench.clock.advance(5.0)
    bench.model.open()

    for future, stage in ((running, "decode"), (queued, "queue")):
        error = future.exception(TIMEOUT_S)
        assert isinstance(error, DeadlineExceededError)
        assert error.stage == stage
        assert bench.metric("deadline_misses_total", stage=stage) == 1
    assert without_deadline.result(TIMEOUT_S).hypotheses
    assert bench.scheduler.drain(TIMEOUT_S)
    assert bench.metric("segments_total", outcome="deadline") == 2


NUM_STEPS = 6
UNLOADED_S = 6.0
QUEUEING_S = 11 * 6.0  # of ten queued segments and the segment itself
MARGIN = 2.5
SUFFICIENT_S = UNLOADED_S + MARGIN * QUEUEING_S + 5.0


@pytest.fixture
def loaded(make_bench: MakeBench) -> Bench:
    """Return a bench that has decoded many segments of six steps, one second each, and stands still with ten queued."""
    bench = timed_bench(make_bench, encode_s=0.0, max_batch_segments=1).start()
    futures = [bench.submit(NUM_STEPS) for _ in range(60)]
    bench.model.let_pass(60 * NUM_STEPS)
    wait(futures, TIMEOUT_S)
    for _ in range(60 * NUM_STEPS):
        bench.model.wait_for_step()
    bench.submit(NUM_STEPS)
    bench.model.wait_for_step()
    for _ in range(10):
        bench.submit(NUM_STEPS)
    return bench


def test_request_that_the_backlog_delays_beyond_its_deadline_is_rejected_with_a_retry_delay(loaded: Bench) -> None:
    with pytest.raises(QueueDelayError) as rejection:
        loaded.submit(NUM_STEPS, timeout_s=30.0)

    assert rejection.value.allowed_s == pytest.approx(30.0)
    assert rejection.value.needed_s == pytest.approx(UNLOADED_S + MARGIN * QUEUEING_S, rel=0.05)
    assert rejection.value.retry_after_s == pytest.approx(QUEUEING_S - (30 - UNLOADED_S) / MARGIN, rel=0.05)
    assert loaded.metric("rejected_requests_total", reason="deadline") == 1
    assert loaded.metric("deadline_misses_total", stage="admission") == 1
    assert loaded.metric("queue_segments") == 10
    assert not loaded.submit(NUM_STEPS, timeout_s=SUFFICIENT_S).done()


def test_prediction_errors_are_recorded(loaded: Bench) -> None:
    def total(part: str) -> float:
        name = f"prediction_error_seconds_{part}"
        return sum(loaded.metric(name, direction=direction) for direction in ("early", "late"))

    count, total_s = total("count"), total("sum")
    loaded.model.open()

    assert loaded.scheduler.drain(TIMEOUT_S)

    assert total("count") == count + 11
    assert total("sum") - total_s < 11 * 6


@pytest.mark.parametrize(
    ("has_rejected", "delay_s", "timeout_s", "is_rejected"),
    [
        (True, 0.0, 30.0, True),
        (True, 0.0, SUFFICIENT_S, False),
        (True, 0.0, 3.0, False),  # too large for its own deadline, which an estimate does not decide
        (True, 1.5, 30.0, False),
        (False, 0.0, 30.0, False),
    ],
)
def test_early_rejection_needs_a_recent_rejection_and_a_delay_by_the_queue(
    loaded: Bench, has_rejected: bool, delay_s: float, timeout_s: float, is_rejected: bool
) -> None:
    if has_rejected:
        with pytest.raises(OverloadedError):
            loaded.submit(NUM_STEPS, timeout_s=30.0)
    loaded.clock.advance(delay_s)
    search = SearchConfig(max_target_tokens=NUM_STEPS)
    context = RequestContext(deadline_s=loaded.clock() + timeout_s)

    if not is_rejected:
        loaded.scheduler.reject_early(NUM_CHARACTERS, search, context)
    else:
        with pytest.raises(QueueDelayError) as rejection:
            loaded.scheduler.reject_early(NUM_CHARACTERS, search, context)
        assert rejection.value.retry_after_s == pytest.approx(QUEUEING_S - (30 - UNLOADED_S) / MARGIN, rel=0.05)
    assert loaded.metric("rejected_requests_total", reason="deadline") == has_rejected + is_rejected


def test_gauges_show_the_batches_until_the_scheduler_stops(make_bench: MakeBench) -> None:
    bench = make_bench().start()
    bench.scheduler.submit([make_segment(7, beam_size=3), make_segment(7, 8, beam_size=2)])
    bench.model.wait_for_step()

    assert bench.metric("batch_live_segments") == 2
    assert bench.metric("batch_live_rows") == 5
    bench.stop()
    assert bench.metric("batch_live_segments") == bench.metric("batch_live_rows") == 0


def test_gauges_add_up_the_schedulers_of_several_models(make_bench: MakeBench) -> None:
    first = make_bench()
    second = Scheduler(Worker(ENDLESS), ENDLESS.limits, SchedulingSettings(), first.metrics, loop=background_loop())

    for scheduler in (first.scheduler, second):
        scheduler.submit([make_segment(7)])

    assert first.metric("queue_segments") == 2
    assert first.metric("queue_decode_cost") == 2 * (2 + 4 * 2)
    second.stop()


def test_every_step_is_counted(make_bench: MakeBench) -> None:
    bench = make_bench().start(is_open=True)
    bench.scheduler.submit([make_segment(7, max_target_tokens=30, min_target_tokens=30)])

    assert bench.scheduler.drain(TIMEOUT_S)

    names = ("decoder_steps_total", "step_duration_seconds_count", "batch_segments_count")
    assert [bench.metric(name) for name in names] == [len(bench.model.step_sizes)] * 3 == [30] * 3


def test_padding_of_rows_and_sources_is_recorded(make_bench: MakeBench) -> None:
    bench = make_bench().start()
    bench.model.let_pass()
    bench.scheduler.submit(
        [make_segment(7, beam_size=1, max_target_tokens=1), make_segment(7, 8, 9, beam_size=3, max_target_tokens=1)]
    )

    assert bench.scheduler.drain(TIMEOUT_S)

    assert bench.metric("step_padding_share_sum", part="rows") == pytest.approx(1 - 4 / 6)
    assert bench.metric("step_padding_share_sum", part="sources") == pytest.approx(1 - 6 / 8)


def test_draining_decodes_all_admitted_segments_and_rejects_new_ones(bench: Bench) -> None:
    futures = [bench.submit(3) for _ in range(3)]
    assert not bench.scheduler.drain(0.0)
    bench.model.open()

    assert bench.scheduler.drain(TIMEOUT_S)

    assert [future.result(0).num_steps for future in futures] == [3, 3, 3]
    with pytest.raises(DrainingError):
        bench.submit()
    assert bench.metric("rejected_requests_total", reason="draining") == 1


def test_stopping_fails_remaining_segments_even_if_the_model_is_stuck(bench: Bench, make_bench: MakeBench) -> None:
    stuck = bench.submit()
    bench.model.wait_for_step()
    futures: list[Future[SegmentResult]] = [stuck, bench.submit()]

    stopping = threading.Thread(target=bench.scheduler.stop)
    stopping.start()

    assert [type(future.exception(TIMEOUT_S)) for future in futures] == [DrainingError] * 2
    bench.model.open()
    stopping.join(TIMEOUT_S)
    never_started = make_bench()
    queued = never_started.submit()
    never_started.scheduler.stop()
    assert isinstance(queued.exception(0), DrainingError)


async def test_cancelled_segment_is_an_engine_error() -> None:
    cancelled: Future[SegmentResult] = Future()
    cancelled.cancel()

    with pytest.raises(EngineError):
        await wait_for_results([cancelled])
