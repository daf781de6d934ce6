"""Budgets and bounds are kept whatever waits, and every admitted segment is answered once whatever happens."""

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, Segment, SegmentResult
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import AdmissionQueue, QueuedSegment
from dragoman_service.scheduling.batch_policy import BatchBudget, fair_share, select_segments
from dragoman_service.scheduling.latency_model import Forecast, RequestCost
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.fakes import FlakyModel, ManualClock, ToyModel, make_segment

TIMEOUT_S = 20.0  # only reached if an answer is missing

SEGMENTS = st.builds(
    lambda num_words, beam_size, limit: make_segment(*[7] * num_words, beam_size=beam_size, max_target_tokens=limit),
    st.integers(0, 20),
    st.integers(1, 6),
    st.integers(1, 10),
)
PENDING = st.builds(
    QueuedSegment,
    segment=SEGMENTS,
    context=st.builds(
        RequestContext,
        priority=st.sampled_from(Priority),
        caller=st.sampled_from(["", "a", "b"]),
        deadline_s=st.integers(1, 20).map(float),
    ),
    work=st.integers(1, 20),
)
BUDGETS = st.builds(
    BatchBudget, max_segments=st.integers(1, 8), max_padded_tokens=st.integers(1, 100), max_rows=st.integers(1, 30)
)


@given(st.lists(PENDING, max_size=20), st.lists(SEGMENTS, max_size=4), BUDGETS)
def test_a_batch_exceeds_its_budget_only_if_it_is_one_segment(
    waiting: list[QueuedSegment], running: list[Segment], budget: BatchBudget
) -> None:
    load = BatchLoad.of(running)

    selected = select_segments(waiting, load, budget)

    joined = BatchLoad.of([*running, *(pending.segment for pending in selected)])
    assert not selected or budget.allows(joined)
    assert joined.num_segments <= 1 or not selected or joined.padded_tokens <= budget.max_padded_tokens


@given(st.lists(PENDING, min_size=1, max_size=20), BUDGETS)
def test_the_head_always_joins_an_empty_batch_and_none_joins_without_it(
    waiting: list[QueuedSegment], budget: BatchBudget
) -> None:
    selected = select_segments(waiting, BatchLoad(), budget)

    assert selected[0] is waiting[0]
    assert len(set(selected)) == len(selected)
    assert set(selected) <= set(waiting)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 100))
def test_while_something_waits_a_batch_is_below_its_share(running: list[int], num_waiting: int) -> None:
    share = fair_share(num_waiting + sum(running), num_batches=len(running))

    assert min(running) < share


class BoundedQueue:
    """A queue and what should be in it."""

    MAX_SEGMENTS, MAX_WORK, MAX_SHARE = 8, 60, 0.5

    def __init__(self) -> None:
        self.queue = AdmissionQueue(
            SchedulingSettings(
                max_queue_segments=self.MAX_SEGMENTS,
                max_queue_work_tokens=self.MAX_WORK,
                max_bulk_wait_s=1.0,
                max_caller_queue_share=self.MAX_SHARE,
            )
        )
        self.held: list[QueuedSegment] = []
        self.forecast = Forecast(SchedulingSettings(max_batch_segments=4, max_batch_rows=16), num_batches=1)

    def act(self, now_s: float, group: Sequence[QueuedSegment], action: str) -> None:
        """Do one thing that may happen to a queue."""
        if action == "admit":
            self._admit(group)
        elif action == "expire":
            expired = self.queue.pop_expired(now_s)
            assert set(expired) == {other for other in self.held if other.context.deadline_s <= now_s}
            self.held = [other for other in self.held if other not in expired]
        elif self.held and action == "drop":
            assert self.queue.drop(self.held.pop())
        elif self.held and action == "serve":
            (first,) = self.queue.peek(now_s, limit=1)
            self.queue.serve(first)
            self.held.remove(first)

    def _admit(self, group: Sequence[QueuedSegment]) -> None:
        caller = group[0].context.caller
        own = [other for other in self.held if other.context.caller == caller]
        amounts = [
            (len(own), len(self.held), len(group), self.MAX_SEGMENTS),
            (work_of(own), work_of(self.held), work_of(group), self.MAX_WORK),
        ]
        is_overfull = any(held + added > limit for _, held, added, limit in amounts)
        is_greedy = caller and any(
            mine + added > self.MAX_SHARE * (limit - held + mine) for mine, held, added, limit in amounts
        )
        cost = RequestCost(works=tuple(one.work for one in group), longest_source=1, most_steps=1, widest_beam=1)
        try:
            self.queue.check_capacity(cost, caller=caller, forecast=self.forecast)
        except OverloadedError:
            assert is_overfull or is_greedy
        else:
            assert not is_overfull
            assert not is_greedy
            self.queue.add(group)
            self.held += group


def work_of(group: Sequence[QueuedSegment]) -> int:
    return sum(pending.work for pending in group)


def same_request(group: list[QueuedSegment]) -> list[QueuedSegment]:
    """Return segments with the caller and the priority of the first."""
    first = group[0]
    return [
        QueuedSegment(
            segment=pending.segment,
            context=replace(first.context, deadline_s=pending.context.deadline_s),
            work=pending.work,
        )
        for pending in group
    ]


GROUPS = st.lists(PENDING, min_size=1, max_size=5).map(same_request)


@given(st.lists(st.tuples(GROUPS, st.sampled_from(["admit", "admit", "drop", "expire", "serve"])), max_size=40))
def test_the_queue_counts_what_it_holds_and_rejects_what_exceeds_its_bounds(
    actions: list[tuple[list[QueuedSegment], str]],
) -> None:
    bounded = BoundedQueue()
    queue = bounded.queue
    for now_s, (group, action) in enumerate(actions):
        bounded.act(float(now_s), group, action)

        held = bounded.held
        assert set(queue.peek(0.0, limit=100)) == set(held)
        assert queue.num_segments == len(held) <= BoundedQueue.MAX_SEGMENTS
        assert queue.num_tokens == sum(other.num_source_tokens for other in held)
        assert queue.work == work_of(held) <= BoundedQueue.MAX_WORK


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


def act(client: Scheduler, clock: ManualClock, action: tuple[object, ...], answers: Answers) -> None:
    """Do one thing a caller or the world may do."""
    match action:
        case ("submit", list() as segments, Priority() as priority, timeout_s):
            deadline_s = clock() + timeout_s if isinstance(timeout_s, int) else math.inf
            try:
                context = RequestContext(priority=priority, deadline_s=deadline_s, caller=f"{len(segments)}")
                futures = client.submit(segments, context)
            except DeadlineExceededError:
                assert timeout_s == 0
            else:
                for future in futures:
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
    options = SchedulingSettings(num_workers=num_threads, max_batch_segments=4, max_queue_segments=10**6)
    core = Worker(model, clock=clock)
    client = Scheduler(core, model.limits, options, metrics, clock=clock)
    client.start()

    for action in actions:
        act(client, clock, action, answers)
    assert not drains or client.drain(TIMEOUT_S)
    client.stop(TIMEOUT_S)

    assert all(count == 1 for count in answers.counts.values())
    assert core.encoded == {}
    samples = [sample for metric in metrics.segments.collect() for sample in metric.samples]
    outcomes = [sample.value for sample in samples if sample.name == "dragoman_segments_total"]
    assert sum(outcomes) == len(answers.counts)
    if drains:
        errors = [future.exception(0) for future in answers.counts if not future.cancelled()]
        assert all(isinstance(error, DeadlineExceededError | EngineError | None) for error in errors)
        assert failure_rate or not any(isinstance(error, EngineError) for error in errors)
