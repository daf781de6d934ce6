"""Budgets are kept whatever waits, and every admitted segment is answered once whatever happens."""

import random
from concurrent.futures import Future
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from service.datatypes import Priority, Segment, SegmentResult
from service.errors import DeadlineExceededError, EngineError, OverloadedError
from service.scheduling.admission import AdmissionQueue, PendingSegment, ServiceRate
from service.scheduling.batching import BatchBudget, BatchLoad, fair_share, next_joiners
from service.scheduling.scheduler import Scheduler
from service.scheduling.settings import SchedulingSettings
from service.telemetry.metrics import Metrics
from tests.fakes import FlakyModel, ManualClock, ToyModel, make_segment

TIMEOUT_S = 20.0  # only reached if an answer is missing

SEGMENTS = st.builds(
    lambda num_words, beam_size, limit: make_segment(*[7] * num_words, beam_size=beam_size, max_target_tokens=limit),
    st.integers(0, 20),
    st.integers(1, 6),
    st.integers(1, 10),
)
PENDING = st.builds(
    PendingSegment,
    segment=SEGMENTS,
    priority=st.sampled_from(Priority),
    admitted_at_s=st.just(0.0),
    deadline_s=st.integers(1, 20).map(float),
    future=st.builds(Future),
)
BUDGETS = st.builds(
    BatchBudget, max_segments=st.integers(1, 8), max_padded_tokens=st.integers(1, 100), max_rows=st.integers(1, 30)
)


@given(st.lists(PENDING, max_size=20), st.lists(SEGMENTS, max_size=4), BUDGETS)
def test_a_batch_exceeds_its_budget_only_if_it_is_one_segment(
    waiting: list[PendingSegment], running: list[Segment], budget: BatchBudget
) -> None:
    load = BatchLoad.of(running)

    joiners = next_joiners(waiting, load, budget)

    joined = BatchLoad.of([*running, *(pending.segment for pending in joiners)])
    assert not joiners or budget.allows(joined)
    assert joined.num_segments <= 1 or not joiners or joined.padded_tokens <= budget.max_padded_tokens


@given(st.lists(PENDING, min_size=1, max_size=20), BUDGETS)
def test_the_head_always_joins_an_empty_batch_and_nobody_joins_without_it(
    waiting: list[PendingSegment], budget: BatchBudget
) -> None:
    joiners = next_joiners(waiting, BatchLoad(), budget)

    assert joiners[0] is waiting[0]
    assert len(set(joiners)) == len(joiners)
    assert set(joiners) <= set(waiting)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 100))
def test_while_something_waits_a_thread_is_below_its_share(running: list[int], num_waiting: int) -> None:
    share = fair_share(num_waiting=num_waiting, num_running=sum(running), num_threads=len(running))

    assert min(running) < share


@given(st.lists(st.tuples(PENDING, st.sampled_from(["admit", "remove", "expire"])), max_size=40))
def test_the_queue_counts_what_it_holds(actions: list[tuple[PendingSegment, str]]) -> None:
    queue = AdmissionQueue(max_segments=8, max_tokens=60, bulk_patience_s=1.0)
    held: list[PendingSegment] = []
    for now_s, (pending, action) in enumerate(actions):
        if action == "expire":
            expired = queue.pop_expired(float(now_s))
            assert set(expired) == {other for other in held if other.deadline_s <= now_s}
            held = [other for other in held if other not in expired]
        elif action == "remove" and held:
            queue.remove(held.pop())
        elif action == "admit" and pending not in held:
            try:
                queue.admit([pending], rate=ServiceRate(num_threads=1))
                held.append(pending)
            except OverloadedError:
                assert len(held) == 8 or sum(other.num_source_tokens for other in [*held, pending]) > 60

        assert set(queue.peek(0.0, limit=100)) == set(held)
        assert queue.num_segments == len(held)
        assert queue.num_tokens == sum(other.num_source_tokens for other in held)


@dataclass
class Answers:
    """Counts how often each future is answered."""

    counts: dict["Future[SegmentResult]", int]

    def watch(self, future: "Future[SegmentResult]") -> None:
        self.counts[future] = 0
        future.add_done_callback(self._count)

    def _count(self, future: "Future[SegmentResult]") -> None:
        self.counts[future] += 1


REQUESTS = st.tuples(
    st.just("submit"), st.lists(SEGMENTS, max_size=6), st.sampled_from(Priority), st.none() | st.integers(0, 30)
)
ACTIONS = st.one_of(
    REQUESTS,
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("advance"), st.integers(1, 10)),
)


def act(scheduler: Scheduler, clock: ManualClock, action: tuple[object, ...], answers: Answers) -> None:
    """Do one thing a caller or the world may do."""
    match action:
        case ("submit", list() as segments, Priority() as priority, timeout_s):
            deadline_s = clock() + timeout_s if isinstance(timeout_s, int) else None
            for future in scheduler.submit(segments, priority=priority, deadline_s=deadline_s):
                answers.watch(future)
        case ("cancel", int() as index) if index < len(answers.counts):
            list(answers.counts)[index].cancel()
        case ("advance", int() as seconds):
            clock.advance(seconds)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(ACTIONS, max_size=25),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    st.booleans(),
    st.integers(),
)
def test_each_admitted_segment_is_answered_once(
    actions: list[tuple[object, ...]], num_threads: int, failure_rate: float, drains: bool, seed: int
) -> None:
    rng, clock, answers = random.Random(seed), ManualClock(), Answers({})  # noqa: S311
    metrics = Metrics(CollectorRegistry())
    model = FlakyModel(ToyModel(), lambda _: rng.random() < failure_rate)
    options = SchedulingSettings(num_decoding_threads=num_threads, max_batch_segments=4, max_queue_segments=10**6)
    scheduler = Scheduler(model, options, metrics, clock=clock)
    scheduler.start()

    for action in actions:
        act(scheduler, clock, action, answers)
    assert not drains or scheduler.drain(TIMEOUT_S)
    scheduler.stop(TIMEOUT_S)

    assert all(count == 1 for count in answers.counts.values())
    samples = [sample for metric in metrics.segments.collect() for sample in metric.samples]
    outcomes = [sample.value for sample in samples if sample.name == "mt_segments_total"]
    assert sum(outcomes) == len(answers.counts)
    if drains:
        errors = [future.exception(0) for future in answers.counts if not future.cancelled()]
        assert all(isinstance(error, DeadlineExceededError | EngineError | None) for error in errors)
        assert failure_rate or not any(isinstance(error, EngineError) for error in errors)
