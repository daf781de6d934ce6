"""Segments are decoded alike in any number of batches, and whatever becomes of the core, all are answered."""

import math
import random
import time
from concurrent.futures import Future

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Segment, SegmentResult
from dragoman_service.errors import DeadlineExceededError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, NewSegment
from tests.fakes import FlakyModel, ToyModel, make_segment
from tests.threaded_core import TIMEOUT_S, MortalCore, decode_here

MODEL = ToyModel()

SEGMENTS = st.builds(
    lambda words, beam_size, limit: make_segment(
        *words, beam_size=beam_size, num_hypotheses=beam_size, max_target_tokens=limit
    ),
    st.lists(st.integers(4, 8), max_size=8),
    st.integers(1, 4),
    st.integers(1, 12),
)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.lists(SEGMENTS, min_size=1, max_size=5), st.sampled_from([None, None, 0.001, 60])),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("die"), st.none()),
    st.tuples(st.just("wait"), st.integers(0, 30)),
)


def make_client(core: MortalCore, metrics: Metrics, *, num_threads: int) -> Scheduler:
    options = SchedulingSettings(num_workers=num_threads, max_batch_segments=3, max_queue_segments=10**6)
    client = Scheduler(core, MODEL.limits, options, metrics)
    client.start()
    return client


@settings(max_examples=60)
@given(st.lists(SEGMENTS, max_size=12), st.integers(1, 3))
def test_an_engine_gives_the_results_of_a_batch_without_one(segments: list[Segment], num_threads: int) -> None:
    core = MortalCore(MODEL)
    client = make_client(core, Metrics(CollectorRegistry()), num_threads=num_threads)
    try:
        results = [future.result(TIMEOUT_S) for future in client.submit(segments)]
    finally:
        client.stop(TIMEOUT_S)
        core.close()

    for segment, result in zip(segments, results, strict=True):
        new = NewSegment(segment_id=7, segment=segment, deadline_s=math.inf)
        alone = decode_here(MODEL, BatchCommand(new_segments=(new,)))[7]
        assert (result.hypotheses, result.num_steps, result.guard) == (alone.hypotheses, alone.num_steps, alone.guard)


def act(client: Scheduler, core: MortalCore, action: tuple[object, ...], answers: "Answers") -> None:
    """Do one thing that a caller may do, or that may happen to the process."""
    match action:
        case ("submit", list() as segments, timeout_s):
            deadline_s = time.monotonic() + timeout_s if isinstance(timeout_s, int | float) else math.inf
            try:
                futures = client.submit(segments, RequestContext(deadline_s=deadline_s))
            except (DeadlineExceededError, OverloadedError):  # too late alone, or behind what waits
                return
            for future in futures:
                answers.watch(future)
        case ("cancel", int() as index) if index < len(answers.counts):
            list(answers.counts)[index].cancel()
        case ("wait", int() as index) if index < len(answers.counts):
            future = list(answers.counts)[index]
            if not future.cancelled():
                future.exception(TIMEOUT_S)
        case ("die", None):
            core.die()


class Answers:
    """Counts how often each future is answered."""

    def __init__(self) -> None:
        self.counts: dict[Future[SegmentResult], int] = {}

    def watch(self, future: "Future[SegmentResult]") -> None:
        self.counts[future] = 0
        future.add_done_callback(self._count)

    def _count(self, future: "Future[SegmentResult]") -> None:
        self.counts[future] += 1


@settings(max_examples=120)
@given(
    st.lists(ACTIONS, max_size=25),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    st.booleans(),
    st.integers(),
)
def test_each_segment_gets_one_answer_whatever_is_cancelled_and_however_often_the_connection_ends(
    actions: list[tuple[object, ...]], num_threads: int, failure_rate: float, drains: bool, seed: int
) -> None:
    rng, metrics, answers = random.Random(seed), Metrics(CollectorRegistry()), Answers()  # noqa: S311
    core = MortalCore(FlakyModel(MODEL, lambda _: rng.random() < failure_rate))
    client = make_client(core, metrics, num_threads=num_threads)

    try:
        for action in actions:
            act(client, core, action, answers)
        assert not drains or client.drain(TIMEOUT_S)
    finally:
        client.stop(TIMEOUT_S)
        core.close()

    assert all(count == 1 for count in answers.counts.values())
    assert metrics.registry.get_sample_value("dragoman_batch_live_segments") == 0
    assert core.encoded == {}
    if drains:
        errors = [future.exception(0) for future in answers.counts if not future.cancelled()]
        assert all(isinstance(error, DeadlineExceededError | EngineError | None) for error in errors)
        is_sound = not failure_rate and all(name != "die" for name, *_ in actions)
        assert not is_sound or not any(isinstance(error, EngineError) for error in errors)


COMMANDS = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), max_size=3)), max_size=5
)


@given(COMMANDS)
def test_merged_commands_start_what_would_be_left_after_giving_them_one_by_one(
    given_keys: list[tuple[list[int], list[int]]],
) -> None:
    left: list[int] = []
    commands = []
    seen: set[int] = set()
    for joining, dropped in given_keys:
        fresh = [key for key in dict.fromkeys(joining) if key not in seen]
        known = [key for key in dropped if key in seen]
        seen.update(fresh)
        left = [key for key in left if key not in known] + fresh
        new = tuple(NewSegment(segment_id=key, segment=make_segment(4), deadline_s=0.0) for key in fresh)
        commands.append(BatchCommand(new_segments=new, dropped_ids=tuple(known)))

    whole = BatchCommand.merged(commands)

    assert [new.segment_id for new in whole.new_segments] == left
