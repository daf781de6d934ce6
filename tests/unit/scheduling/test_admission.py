import math
from dataclasses import replace

import pytest

from dragoman_service.errors import DeadlineExceededError, DrainingError, OverloadedError, QueueDelayError
from dragoman_service.scheduling.admission import (
    Admission,
    AdmissionPolicy,
    AdmissionRequest,
    QueueState,
    Rejection,
)
from dragoman_service.scheduling.latency_model import Backlog, LatencyModel, RequestCost
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput

COST = RequestCost(segment_costs=(2,), longest_source=2, max_steps=1, widest_beam=1)
EMPTY = QueueState()
S_PER_COST = 0.1
UNLOADED_S = 1.6  # one step, as measured for 16 rows, of one segment in a batch of 16 rows
MARGIN = 2.5


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


def make_request(*segment_costs: int, caller: str = "me", **options: float) -> AdmissionRequest:
    cost = replace(COST, segment_costs=segment_costs or (2,))
    return AdmissionRequest(cost=cost, caller=caller, **options)  # type: ignore[arg-type]


def make_state(segments: int, cost: int, *, own: tuple[int, int] = (0, 0), num_callers: int = 1) -> QueueState:
    return QueueState(
        num_segments=segments,
        decode_cost=cost,
        num_caller_segments=own[0],
        caller_decode_cost=own[1],
        num_callers=num_callers,
    )


def overload(policy: AdmissionPolicy, request: AdmissionRequest, state: QueueState) -> OverloadedError:
    decision = policy.decide(request, state, 0.0)
    assert isinstance(decision, Rejection)
    assert decision.reason == "overloaded"
    assert isinstance(decision.error, OverloadedError)
    return decision.error


@pytest.mark.parametrize(
    ("segment_costs", "state", "expected"),
    [
        ((2, 2), make_state(9, 18), (9, 10, "segments")),
        ((2,) * 11, EMPTY, (0, 10, "segments")),
        ((3,), make_state(1, 98), (98, 100, "units of decode cost")),
        ((101,), EMPTY, (0, 100, "units of decode cost")),
    ],
)
def test_request_beyond_a_limit_of_the_queue_is_rejected(
    segment_costs: tuple[int, ...], state: QueueState, expected: tuple[int, int, str]
) -> None:
    error = overload(make_policy(), make_request(*segment_costs), state)

    assert (error.queued, error.limit, error.unit) == expected


@pytest.mark.parametrize(
    ("segment_costs", "state", "expected"),
    [
        ((2,) * 5, EMPTY, None),
        ((2,) * 6, EMPTY, (0, 5, "segments of this caller")),
        ((2,), make_state(5, 10, own=(5, 10)), (5, 5, "segments of this caller")),
        ((2,) * 2, make_state(5, 10), None),
        ((2,) * 3, make_state(5, 10), (0, 2, "segments of this caller")),
        ((10,), make_state(1, 45, own=(1, 45)), (45, 50, "units of decode cost of this caller")),
        ((25,), make_state(1, 50), None),
    ],
)
def test_caller_holds_at_most_its_share_of_the_room_that_others_leave(
    segment_costs: tuple[int, ...], state: QueueState, expected: tuple[int, int, str] | None
) -> None:
    policy, request = make_policy(share=0.5), make_request(*segment_costs)

    if expected is None:
        assert isinstance(policy.decide(request, state, 0.0), Admission)
    else:
        error = overload(policy, request, state)
        assert (error.queued, error.limit, error.unit) == expected


def test_requests_of_the_server_itself_have_no_share() -> None:
    decision = make_policy(share=0.25).decide(make_request(caller=""), make_state(9, 18, own=(9, 18)), 0.0)

    assert isinstance(decision, Admission)


@pytest.mark.parametrize(
    ("segment_costs", "state", "share", "freed_cost"),
    [
        ((50,), make_state(1, 90), 1.0, 40),  # until there is room for the cost
        ((2,), make_state(10, 200), 1.0, 20),  # of one average segment
        # Half of what leaves the queue is the caller's own, and half of the other half becomes free for it.
        ((2, 2), make_state(6, 60, own=(4, 40), num_callers=2), 0.5, math.ceil(2 * 10 / 0.75)),
    ],
)
def test_retry_delay_is_the_time_until_the_queue_has_room(
    segment_costs: tuple[int, ...], state: QueueState, share: float, freed_cost: int
) -> None:
    policy = make_policy(s_per_cost=S_PER_COST, max_cost=100 if state.decode_cost < 100 else 1000, share=share)

    error = overload(policy, make_request(*segment_costs), state)

    assert error.retry_after_s == pytest.approx(freed_cost * S_PER_COST)


@pytest.mark.parametrize(("s_per_cost", "expected_s"), [(None, 1.0), (1e-9, 0.1), (1e9, 60.0)])
def test_retry_delay_has_limits_and_a_default(s_per_cost: float | None, expected_s: float) -> None:
    error = overload(make_policy(s_per_cost=s_per_cost), make_request(), make_state(10, 20))

    assert error.retry_after_s == expected_s


BACKLOG = QueueState(backlog=Backlog(num_queued=1000, decode_cost=98, num_running=16))
NEEDED_S = UNLOADED_S + MARGIN * 100 * S_PER_COST


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
    policy = make_policy(s_per_cost=S_PER_COST)

    decision = policy.decide(make_request(deadline_s=deadline_s, is_estimate=is_estimate), state, now_s)

    if expected is None:
        assert isinstance(decision, Admission)
    else:
        assert isinstance(decision, Rejection)
        assert (decision.reason, type(decision.error)) == ("deadline", expected)


def test_delay_by_the_queue_has_a_retry_delay() -> None:
    decision = make_policy(s_per_cost=S_PER_COST).decide(make_request(deadline_s=10.0), BACKLOG, 0.0)

    assert isinstance(decision, Rejection)
    assert isinstance(decision.error, QueueDelayError)
    assert decision.error.needed_s == pytest.approx(NEEDED_S, rel=0.01)
    assert decision.error.allowed_s == 10.0
    assert decision.error.retry_after_s == pytest.approx((NEEDED_S - 10.0) / MARGIN, rel=0.01)
    assert str(decision.error) == "estimated completion in 26.6 s exceeds the deadline of 10.0 s; retry in 6.6 s"


def test_draining_rejects_every_request() -> None:
    decision = make_policy().decide(make_request(), EMPTY._replace(is_draining=True), 0.0)

    assert isinstance(decision, Rejection)
    assert (decision.reason, type(decision.error)) == ("draining", DrainingError)
