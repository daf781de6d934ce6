"""Budgets and limits hold for every queue, and each admitted segment gets exactly one result whatever fails."""

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, Segment, SegmentResult
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission import AdmissionPolicy, LatencyModel, Prediction, RequestCost
from dragoman_service.scheduling.admission_queue import (
    AdmissionQueue,
    BatchBudget,
    QueuedSegment,
    fair_share,
    select_segments,
)
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, NewSegment
from dragoman_service.worker.worker import ServedModel
from tests.background_loop import background_loop
from tests.fakes import FlakyModel, ManualClock, ToyModel, make_segment
from tests.mortal_worker import TIMEOUT_S, MortalWorker, decode_here

MODEL = ToyModel()
SEGMENTS = st.builds(
    lambda words, beam_size, limit: make_segment(
        *words, beam_size=beam_size, num_hypotheses=beam_size, max_target_tokens=limit
    ),
    st.lists(st.integers(4, 8), max_size=20),
    st.integers(1, 6),
    st.integers(1, 12),
)
QUEUED = st.builds(
    QueuedSegment,
    segment=SEGMENTS,
    context=st.builds(
        RequestContext,
        priority=st.sampled_from(Priority),
        caller=st.sampled_from(["", "a", "b"]),
        deadline_s=st.integers(1, 20).map(float),
    ),
    decode_cost=st.integers(1, 20),
)
BUDGETS = st.builds(
    BatchBudget, max_segments=st.integers(1, 8), max_padded_tokens=st.integers(1, 100), max_rows=st.integers(1, 30)
)


@given(st.lists(QUEUED, max_size=20), st.lists(SEGMENTS, max_size=4), BUDGETS)
def test_batch_exceeds_its_budget_only_if_it_has_one_segment_and_the_head_joins_first(
    queued: list[QueuedSegment], running: list[Segment], budget: BatchBudget
) -> None:
    selected = select_segments(queued, BatchLoad.of(running), budget)

    assert not selected or budget.allows(BatchLoad.of([*running, *(segment.segment for segment in selected)]))
    assert selected[:1] == queued[: bool(selected)]
    assert selected or not queued or running
    assert len(set(selected)) == len(selected)
    assert set(selected) <= set(queued)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 100))
def test_a_batch_is_below_its_share_while_a_segment_is_queued(running: list[int], num_queued: int) -> None:
    share = fair_share(num_queued + sum(running), num_batches=len(running))

    assert min(running) < share


class BoundedQueue:
    """A queue behind an admission policy, and the segments that it should hold."""

    MAX_SEGMENTS, MAX_COST, MAX_SHARE = 8, 60, 0.5

    def __init__(self) -> None:
        settings = SchedulingSettings(
            max_queue_segments=self.MAX_SEGMENTS,
            max_queue_decode_cost=self.MAX_COST,
            max_caller_queue_share=self.MAX_SHARE,
        )
        self.queue = AdmissionQueue(max_bulk_wait_s=1.0)
        self.policy = AdmissionPolicy(settings, LatencyModel(settings, num_batches=1))
        self.held: list[QueuedSegment] = []

    def act(self, now_s: float, group: Sequence[QueuedSegment], action: str) -> None:
        """Admit a request, or remove segments."""
        if action == "admit":
            self._admit(group)
        elif action == "expire":
            expired = self.queue.pop_expired(now_s)
            assert set(expired) == {segment for segment in self.held if segment.context.deadline_s <= now_s}
            self.held = [segment for segment in self.held if segment not in expired]
        elif self.held and action == "discard":
            assert self.queue.discard(self.held.pop())
        elif self.held and action == "dequeue":
            (first,) = self.queue.peek(now_s, limit=1)
            self.queue.dequeue(first)
            self.held.remove(first)

    def _admit(self, group: Sequence[QueuedSegment]) -> None:
        context = group[0].context
        own = [segment for segment in self.held if segment.context.caller == context.caller]
        amounts = [
            (len(own), len(self.held), len(group), self.MAX_SEGMENTS),
            (cost_of(own), cost_of(self.held), cost_of(group), self.MAX_COST),
        ]
        is_full = any(held + added > limit for _, held, added, limit in amounts)
        is_beyond_share = context.caller and any(
            mine + added > self.MAX_SHARE * (limit - held + mine) for mine, held, added, limit in amounts
        )
        costs = tuple(segment.decode_cost for segment in group)
        cost = RequestCost(segment_costs=costs, longest_source=1, max_steps=1, widest_beam=1)
        state = self.queue.state(cost, context, num_running=0)
        decision = self.policy.decide(cost, replace(context, deadline_s=math.inf), state, 0.0)
        assert isinstance(decision, Prediction) == (not is_full and not is_beyond_share)
        if isinstance(decision, Prediction):
            self.queue.add(group)
            self.held += group


def cost_of(group: Sequence[QueuedSegment]) -> int:
    return sum(segment.decode_cost for segment in group)


def same_request(group: list[QueuedSegment]) -> list[QueuedSegment]:
    """Return segments with the caller and the priority of the first."""
    return [
        QueuedSegment(
            segment=segment.segment,
            context=replace(group[0].context, deadline_s=segment.context.deadline_s),
            decode_cost=segment.decode_cost,
        )
        for segment in group
    ]


GROUPS = st.lists(QUEUED, min_size=1, max_size=5).map(same_request)


@given(st.lists(st.tuples(GROUPS, st.sampled_from(["admit", "admit", "discard", "expire", "dequeue"])), max_size=40))
def test_queue_counts_its_segments_and_never_exceeds_its_limits(
    actions: list[tuple[list[QueuedSegment], str]],
) -> None:
    bounded = BoundedQueue()
    queue = bounded.queue
    for now_s, (group, action) in enumerate(actions):
        bounded.act(float(now_s), group, action)

        held = bounded.held
        assert set(queue.peek(0.0, limit=100)) == set(held)
        assert queue.num_segments == len(held) <= BoundedQueue.MAX_SEGMENTS
        assert queue.num_tokens == sum(segment.num_source_tokens for segment in held)
        assert queue.decode_cost == cost_of(held) <= BoundedQueue.MAX_COST


class SchedulerUnderTest:
    """A scheduler, its worker and the number of results of each segment."""

    def __init__(self, model: ServedModel, *, num_workers: int) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry())
        self.worker = MortalWorker(model, self.clock)
        options = SchedulingSettings(num_workers=num_workers, max_batch_segments=3, max_queue_segments=10**6)
        self.scheduler = Scheduler(self.worker, MODEL.limits, options, self.metrics, self.clock, loop=background_loop())
        self.scheduler.start()
        self.num_results: dict[Future[SegmentResult], int] = {}

    def act(self, action: tuple[object, ...]) -> None:
        """Do something that a caller can do, or that can happen to a worker."""
        match action:
            case ("submit", list() as segments, Priority() as priority, timeout_s):
                deadline_s = self.clock() + timeout_s if isinstance(timeout_s, int) else math.inf
                context = RequestContext(priority=priority, deadline_s=deadline_s, caller=f"{len(segments)}")
                try:
                    futures = self.scheduler.submit(segments, context)
                except (DeadlineExceededError, OverloadedError):
                    assert isinstance(timeout_s, int)
                    return
                for future in futures:
                    self.num_results[future] = 0
                    future.add_done_callback(self._count)
            case ("cancel", int() as index) if index < len(self.num_results):
                list(self.num_results)[index].cancel()
            case ("wait", int() as index) if index < len(self.num_results):
                future = list(self.num_results)[index]
                if not future.cancelled():
                    future.exception(TIMEOUT_S)
            case ("advance", int() as seconds):
                self.clock.advance(seconds)
            case ("die",):
                self.worker.die()

    def stop(self) -> None:
        self.scheduler.stop(TIMEOUT_S)
        self.worker.close()

    def _count(self, future: "Future[SegmentResult]") -> None:
        self.num_results[future] += 1


ACTIONS = st.one_of(
    st.tuples(
        st.just("submit"), st.lists(SEGMENTS, max_size=6), st.sampled_from(Priority), st.none() | st.integers(0, 30)
    ),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("wait"), st.integers(0, 50)),
    st.tuples(st.just("advance"), st.integers(1, 10)),
    st.tuples(st.just("die")),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(ACTIONS, max_size=25),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
    st.booleans(),
    st.integers(),
)
def test_each_admitted_segment_gets_exactly_one_result(
    actions: list[tuple[object, ...]], num_workers: int, failure_rate: float, drains: bool, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311
    tested = SchedulerUnderTest(FlakyModel(MODEL, lambda _: rng.random() < failure_rate), num_workers=num_workers)

    try:
        for action in actions:
            tested.act(action)
        assert not drains or tested.scheduler.drain(TIMEOUT_S)
    finally:
        tested.stop()

    assert all(count == 1 for count in tested.num_results.values())
    assert tested.worker.encoded == {}
    assert tested.metrics.registry.get_sample_value("dragoman_batch_live_segments") == 0
    samples = [sample for metric in tested.metrics.segments.collect() for sample in metric.samples]
    outcomes = [sample.value for sample in samples if sample.name == "dragoman_segments_total"]
    assert sum(outcomes) == len(tested.num_results)
    if drains:
        errors = [future.exception(0) for future in tested.num_results if not future.cancelled()]
        assert all(isinstance(error, DeadlineExceededError | EngineError | None) for error in errors)
        has_failures = failure_rate or ("die",) in actions
        assert has_failures or not any(isinstance(error, EngineError) for error in errors)


@settings(max_examples=60)
@given(st.lists(SEGMENTS, max_size=12), st.integers(1, 3))
def test_scheduler_returns_the_results_of_each_segment_alone(segments: list[Segment], num_workers: int) -> None:
    tested = SchedulerUnderTest(MODEL, num_workers=num_workers)
    try:
        results = [future.result(TIMEOUT_S) for future in tested.scheduler.submit(segments)]
    finally:
        tested.stop()

    for segment, result in zip(segments, results, strict=True):
        new = NewSegment(segment_id=7, segment=segment, deadline_s=math.inf)
        alone = decode_here(MODEL, BatchCommand(new_segments=(new,)))[7]
        assert (result.hypotheses, result.num_steps) == (alone.hypotheses, alone.num_steps)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), max_size=3)), max_size=5)
)
def test_merged_commands_equal_the_commands_one_by_one(steps: list[tuple[list[int], list[int]]]) -> None:
    remaining: list[int] = []
    commands = []
    seen: set[int] = set()
    for joining, dropped in steps:
        new_ids = [key for key in dict.fromkeys(joining) if key not in seen]
        dropped_ids = [key for key in dropped if key in seen]
        seen.update(new_ids)
        remaining = [key for key in remaining if key not in dropped_ids] + new_ids
        new = tuple(NewSegment(segment_id=key, segment=make_segment(4), deadline_s=0.0) for key in new_ids)
        commands.append(BatchCommand(new_segments=new, dropped_ids=tuple(dropped_ids)))

    merged = BatchCommand.merged(commands)

    assert [new.segment_id for new in merged.new_segments] == remaining
