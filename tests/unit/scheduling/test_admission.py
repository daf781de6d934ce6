import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.errors import DeadlineExceededError, OverloadedError, QueueDelayError
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission import (
    MAX_STEPS_PER_SOURCE_TOKEN,
    NO_BACKLOG,
    AdmissionPolicy,
    Backlog,
    DeadlineMargin,
    LatencyModel,
    LengthModel,
    MovingRatio,
    Prediction,
    QueueState,
    Rejection,
    RequestCost,
)
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput
from tests.fakes import make_segment

COST = RequestCost(segment_costs=(2,), longest_source=2, max_steps=1, widest_beam=1)
EMPTY = QueueState()
S_PER_COST = 0.1
UNLOADED_S = 1.6  # one step, as measured for 16 rows, of one segment in a batch of 16 rows
MIN_MARGIN = 2.5

SMALL_STEP = BatchStepOutput(num_rows=4, step_s=0.01, busy_s=0.01)
LARGE_STEP = BatchStepOutput(num_rows=32, step_s=0.04, busy_s=0.04)
ENCODED_STEP = BatchStepOutput(num_encoded_tokens=10, encode_s=0.02, num_rows=4, step_s=0.01, busy_s=0.03)
SEARCH = SearchConfig(beam_size=2)


def make_policy(
    *, s_per_cost: float | None = None, max_segments: int = 10, max_cost: int = 100, share: float = 1.0
) -> AdmissionPolicy:
    settings = SchedulingSettings(
        max_batch_segments=16,
        max_batch_rows=16,
        max_queue_segments=max_segments,
        max_queue_decode_cost=max_cost,
        max_caller_queue_share=share,
    )
    latency_model = LatencyModel(settings, num_batches=1)
    for _ in range(100 if s_per_cost else 0):
        output = BatchStepOutput(num_rows=1, step_s=UNLOADED_S, busy_s=s_per_cost or 0.0)
        latency_model.record_step(output, is_backlogged=True, now_s=0.0)
    return AdmissionPolicy(settings, latency_model)


def make_state(segments: int, cost: int, *, own: tuple[int, int] = (0, 0), num_callers: int = 1) -> QueueState:
    return QueueState(
        num_segments=segments,
        decode_cost=cost,
        num_caller_segments=own[0],
        caller_decode_cost=own[1],
        num_callers=num_callers,
    )


def decide(
    policy: AdmissionPolicy, segment_costs: Sequence[int], state: QueueState, *, caller: str = "me"
) -> OverloadedError | None:
    """Return why a request without a deadline is rejected; None if it is admitted."""
    cost = replace(COST, segment_costs=tuple(segment_costs))
    decision = policy.decide(cost, RequestContext(caller=caller), state, 0.0)
    if isinstance(decision, Prediction):
        return None
    assert decision.reason == "overloaded"
    assert isinstance(decision.error, OverloadedError)
    return decision.error


@pytest.mark.parametrize(
    ("share", "segment_costs", "state", "expected"),
    [
        (1.0, [2, 2], make_state(9, 18), (9, 10, "segments")),
        (1.0, [2] * 11, EMPTY, (0, 10, "segments")),
        (1.0, [3], make_state(1, 98), (98, 100, "units of decode cost")),
        (1.0, [101], EMPTY, (0, 100, "units of decode cost")),
        (0.5, [2] * 5, EMPTY, None),
        (0.5, [2] * 6, EMPTY, (0, 5, "segments of this caller")),
        (0.5, [2], make_state(5, 10, own=(5, 10)), (5, 5, "segments of this caller")),
        (0.5, [2] * 2, make_state(5, 10), None),
        (0.5, [2] * 3, make_state(5, 10), (0, 2, "segments of this caller")),
        (0.5, [10], make_state(1, 45, own=(1, 45)), (45, 50, "units of decode cost of this caller")),
        (0.5, [25], make_state(1, 50), None),
    ],
)
def test_request_beyond_a_limit_of_the_queue_or_the_share_of_its_caller_is_rejected(
    share: float, segment_costs: list[int], state: QueueState, expected: tuple[int, int, str] | None
) -> None:
    error = decide(make_policy(share=share), segment_costs, state)

    assert (error and (error.queued, error.limit, error.unit)) == expected


def test_requests_of_the_server_itself_have_no_share() -> None:
    assert decide(make_policy(share=0.25), [2], make_state(9, 18, own=(9, 18)), caller="") is None


@pytest.mark.parametrize(
    ("segment_costs", "state", "share", "freed_cost"),
    [
        ([50], make_state(1, 90), 1.0, 40),  # until there is room for the cost
        ([2], make_state(10, 200), 1.0, 20),  # of one average segment
        # Half of what leaves the queue is the caller's own, and half of the other half becomes free for it.
        ([2, 2], make_state(6, 60, own=(4, 40), num_callers=2), 0.5, math.ceil(2 * 10 / 0.75)),
    ],
)
def test_retry_delay_is_the_time_until_the_queue_has_room(
    segment_costs: list[int], state: QueueState, share: float, freed_cost: int
) -> None:
    policy = make_policy(s_per_cost=S_PER_COST, max_cost=100 if state.decode_cost < 100 else 1000, share=share)

    error = decide(policy, segment_costs, state)

    assert error is not None
    assert error.retry_after_s == pytest.approx(freed_cost * S_PER_COST)


@pytest.mark.parametrize(("s_per_cost", "expected_s"), [(None, 1.0), (1e-9, 0.1), (1e9, 60.0)])
def test_retry_delay_has_limits_and_a_default(s_per_cost: float | None, expected_s: float) -> None:
    error = decide(make_policy(s_per_cost=s_per_cost), [2], make_state(10, 20))

    assert error is not None
    assert error.retry_after_s == expected_s


BACKLOG = QueueState(backlog=Backlog(num_queued=1000, decode_cost=98, num_running=16))
NEEDED_S = UNLOADED_S + MIN_MARGIN * 100 * S_PER_COST


@pytest.mark.parametrize(
    ("deadline_s", "now_s", "state", "is_estimate", "expected"),
    [
        (math.inf, 0.0, BACKLOG, False, None),
        (NEEDED_S + 0.5, 0.0, BACKLOG, False, None),
        (NEEDED_S - 0.5, 0.0, BACKLOG, False, QueueDelayError),
        (NEEDED_S - 0.5, 0.0, EMPTY, False, None),
        (UNLOADED_S - 0.1, 0.0, BACKLOG, False, DeadlineExceededError),
        (UNLOADED_S - 0.1, 0.0, BACKLOG, True, None),  # an estimate does not reject a request for its own size
        (NEEDED_S - 0.5, 0.0, BACKLOG, True, QueueDelayError),
        (20.0, 10.5, BACKLOG, False, None),  # the measurements are too old
        (20.0, 20.0, EMPTY, False, DeadlineExceededError),
    ],
)
def test_deadline_is_compared_with_the_predicted_latency(
    deadline_s: float, now_s: float, state: QueueState, is_estimate: bool, expected: type[Exception] | None
) -> None:
    policy, context = make_policy(s_per_cost=S_PER_COST), RequestContext(caller="me", deadline_s=deadline_s)

    decision = policy.decide(COST, context, state, now_s, is_estimate=is_estimate)

    if expected is None:
        assert isinstance(decision, Prediction)
    else:
        assert isinstance(decision, Rejection)
        assert (decision.reason, type(decision.error)) == ("deadline", expected)


def test_delay_by_the_queue_has_a_retry_delay() -> None:
    decision = make_policy(s_per_cost=S_PER_COST).decide(COST, RequestContext(deadline_s=10.0), BACKLOG, 0.0)

    assert isinstance(decision, Rejection)
    assert isinstance(decision.error, QueueDelayError)
    assert decision.error.needed_s == pytest.approx(NEEDED_S, rel=0.01)
    assert decision.error.allowed_s == 10.0
    assert decision.error.retry_after_s == pytest.approx((NEEDED_S - 10.0) / MIN_MARGIN, rel=0.01)
    assert str(decision.error) == "estimated completion in 26.6 s exceeds the deadline of 10.0 s; retry in 6.6 s"


def make_model(
    *outputs: BatchStepOutput, is_backlogged: bool = False, num_batches: int = 1, max_rows: int = 1000
) -> LatencyModel:
    """Return a model that has recorded outputs, each 200 times."""
    model = LatencyModel(SchedulingSettings(max_batch_segments=8, max_batch_rows=max_rows), num_batches=num_batches)
    for output in outputs:
        for _ in range(200):
            model.record_step(output, is_backlogged=is_backlogged, now_s=0.0)
    return model


def make_source(num_tokens: int, **search: int) -> Segment:
    return make_segment(*[7] * (num_tokens - 1), **{"max_target_tokens": 200, **search})


def latency_s(model: LatencyModel, *segments: Segment, backlog: Backlog = NO_BACKLOG) -> float:
    return model.predict(model.request_cost(segments), backlog).total_s


@pytest.mark.parametrize(
    ("steps_per_token", "segment", "expected"),
    [
        (None, make_source(10), 10),
        (1.5, make_source(20), 30),
        (100.0, make_source(10), 10 * MAX_STEPS_PER_SOURCE_TOKEN),
        (None, make_source(50, max_target_tokens=7), 7),
        (None, make_source(2, min_target_tokens=30), 31),
        (None, make_segment(7, target_prefix=(8,) * 9), 10),
    ],
)
def test_expected_steps_follow_the_source_within_the_limits_of_the_request(
    steps_per_token: float | None, segment: Segment, expected: int
) -> None:
    outputs = [BatchStepOutput(num_tokens=10, num_steps=round(10 * steps_per_token))] if steps_per_token else []

    cost = make_model(*outputs).request_cost([segment])

    assert cost.max_steps == expected
    assert cost.decode_cost == len(segment.source_ids) + segment.search.beam_size * expected


def test_model_without_measurements_predicts_no_latency() -> None:
    model = make_model()

    assert latency_s(model, make_source(50), backlog=Backlog(num_queued=9, decode_cost=10**6, num_running=8)) == 0.0
    assert not model.is_fresh(0.0)
    assert not model.predict(model.request_cost([make_source(50)]), NO_BACKLOG).has_throughput


THROUGHPUT = make_model(LARGE_STEP, is_backlogged=True)
S_PER_LARGE_COST = 0.04 / 32


@pytest.mark.parametrize(
    ("model", "num_segments", "backlog", "expected_s"),
    [
        (make_model(ENCODED_STEP), 1, NO_BACKLOG, 10 * 0.002 + 10 * 0.01),
        (make_model(SMALL_STEP, LARGE_STEP), 1, NO_BACKLOG, 10 * 0.01),
        (make_model(SMALL_STEP, LARGE_STEP), 8, NO_BACKLOG, 10 * 0.04),
        (make_model(SMALL_STEP), 8, NO_BACKLOG, 10 * 0.01),  # larger than measured: assumed to be as fast
        (make_model(LARGE_STEP), 1, NO_BACKLOG, 10 * 0.04 / 8),  # smaller: assumed to be proportionally faster
        (THROUGHPUT, 4, Backlog(num_running=4), 10 * 0.04),  # fits into the batch
        (THROUGHPUT, 80, NO_BACKLOG, (1 - 8 / 80) * 80 * 50 * S_PER_LARGE_COST + 10 * 0.04),  # waits for itself
        (
            make_model(LARGE_STEP, is_backlogged=True, num_batches=2),  # both drain the backlog
            1,
            Backlog(num_queued=100, decode_cost=5000, num_running=16),
            (5000 + 50) * S_PER_LARGE_COST / 2 + 10 * 0.04,
        ),
    ],
)
def test_latency_adds_up_queue_encoder_run_and_steps(
    model: LatencyModel, num_segments: int, backlog: Backlog, expected_s: float
) -> None:
    assert latency_s(model, *[make_source(10)] * num_segments, backlog=backlog) == pytest.approx(expected_s)


def test_merged_steps_are_recorded_one_by_one() -> None:
    steps_s = [0.01 + 0.001 * step for step in range(40)]
    merged, separate = make_model(), make_model()

    merged.record_step(
        BatchStepOutput(num_rows=4, step_s=steps_s[-1], earlier_steps_s=steps_s[:-1]), is_backlogged=False, now_s=0.0
    )
    for step_s in steps_s:
        separate.record_step(BatchStepOutput(num_rows=4, step_s=step_s), is_backlogged=False, now_s=0.0)

    assert latency_s(merged, make_source(10)) == latency_s(separate, make_source(10)) > 0


def test_steps_without_a_backlog_do_not_measure_throughput() -> None:
    model = make_model(SMALL_STEP)

    assert model.drain_time_s(1000) == 0.0
    assert model.retry_delay_s(50.0) == 1.0


def test_wide_beam_uses_the_room_of_several_segments() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True, max_rows=16)

    wide, narrow = (latency_s(model, *[make_source(10, beam_size=size)] * 2) for size in (16, 8))

    assert wide > narrow


def test_measurements_are_fresh_for_ten_seconds() -> None:
    assert [make_model(SMALL_STEP).is_fresh(now_s) for now_s in (10.0, 10.1)] == [True, False]


def make_ratio(*samples: float) -> MovingRatio:
    ratio = MovingRatio()
    for sample in samples:
        ratio.record(sample, per=1)
    return ratio


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1.0] * 31, None),
        ([1.0] * 32, 1.0),
        ([0.01] * 200 + [1000.0], pytest.approx(0.01, rel=0.05)),
        ([1000.0] + [0.01] * 31, pytest.approx(0.01, rel=0.15)),
        ([1.0] * 200 + [10.0] * 700, pytest.approx(10.0, rel=0.05)),
        ([1.0] * 200 + [0.1] * 700, pytest.approx(0.1, rel=0.05)),
    ],
    ids=["too few samples", "enough samples", "late outlier", "early outlier", "rise", "fall"],
)
def test_ratio_follows_lasting_changes_but_not_outliers(samples: list[float], expected: object) -> None:
    assert make_ratio(*samples).value == expected


def test_ratio_divides_the_sums() -> None:
    ratio = MovingRatio()
    for _ in range(100):
        ratio.record(1.0, per=1)
        ratio.record(9.0, per=3)

    assert ratio.value == pytest.approx(10 / 4, rel=0.02)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(1.0, 3.0)] * 15, MIN_MARGIN),  # too few answers
        ([(1.0, 3.0)] * 16, 3.0),
        ([(2.0, 0.5)] * 20, MIN_MARGIN),
        ([(1.0, 60.0)] * 20, 4.0),  # a stall
        ([(0.01, 0.05)] * 20, MIN_MARGIN),  # predictions too short to count
        ([(1.0, 3.5)] + [(1.0, 0.9)] * 127, 3.5),
        ([(1.0, 3.5)] + [(1.0, 0.9)] * 127 + [(1.0, 2.75)], 2.75),  # only the last 128 answers count
    ],
)
def test_margin_is_the_largest_ratio_of_actual_to_predicted_time_within_limits(
    answers: list[tuple[float, float]], expected: float
) -> None:
    margin = DeadlineMargin()
    for predicted_s, actual_s in answers:
        margin.record(predicted_s=predicted_s, actual_s=actual_s)

    assert margin.factor == expected


def make_lengths(*, num_characters: int, sources: list[int]) -> LengthModel:
    lengths = LengthModel()
    for _ in range(100):
        lengths.record(num_characters, [make_segment(*[7] * (num_tokens - 1)) for num_tokens in sources])
    return lengths


@pytest.mark.parametrize(
    ("lengths", "num_characters", "expected"),
    [
        (LengthModel(), 100, []),
        (make_lengths(num_characters=0, sources=[10]), 100, []),
        (make_lengths(num_characters=120, sources=[10, 20]), 240, [15] * 4),
        (make_lengths(num_characters=120, sources=[10, 20]), 120, [20, 10]),
        (make_lengths(num_characters=120, sources=[10, 20]), 1, [1]),
        (make_lengths(num_characters=120, sources=[10, 20]), 5, [1]),
    ],
)
def test_segments_are_expected_in_proportion_to_the_text(
    lengths: LengthModel, num_characters: int, expected: list[int]
) -> None:
    segments = lengths.expected_segments(num_characters, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == expected
    assert all(segment.search == SEARCH for segment in segments)
