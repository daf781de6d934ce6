"""Admission policy: decides from the queue, the deadline and the latency model whether a request is admitted.

The decision is a pure function: it takes no lock, reads no clock and counts nothing. The scheduler acts on it.
"""

import math
from typing import Literal, NamedTuple

from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    OverloadedError,
    QueueDelayError,
)
from dragoman_service.scheduling.latency_model import NO_BACKLOG, Backlog, LatencyModel, Prediction, RequestCost
from dragoman_service.scheduling.settings import SchedulingSettings

# Named tuples: they are made for each request, also for rejected ones, and cost less to make than frozen dataclasses.


class AdmissionRequest(NamedTuple):
    """A request that asks to be admitted as a whole."""

    cost: RequestCost
    caller: str = ""  # empty for requests of the server itself, which have no share
    deadline_s: float = math.inf
    is_estimate: bool = False  # whether the cost is estimated from the length of the texts


class QueueState(NamedTuple):
    """The queue as far as it concerns the admission of one request."""

    num_segments: int = 0
    decode_cost: int = 0
    num_caller_segments: int = 0  # of the caller of the request
    caller_decode_cost: int = 0
    num_callers: int = 1  # with queued segments; at least 1
    backlog: Backlog = NO_BACKLOG  # served before the last segment of the request
    is_draining: bool = False


class Admission(NamedTuple):
    """The request is admitted."""

    prediction: Prediction


class Rejection(NamedTuple):
    """The request is rejected; an `OverloadedError` has the retry delay."""

    reason: Literal["draining", "deadline", "overloaded"]
    error: DragomanError


class AdmissionPolicy:
    """Admits a request if its deadline can be met and the queue has room for all of its segments.

    The queue bounds segments and decode cost, of all callers together and of each caller. One caller may hold a share
    of the room that the others leave (dynamic thresholds, Choudhury and Hahne 1998): with a share of 0.5, one caller
    gets half of the queue, two callers get a third each, and a new caller always finds room.
    """

    def __init__(self, settings: SchedulingSettings, latency_model: LatencyModel) -> None:
        self._settings = settings
        self._latency_model = latency_model

    def decide(self, request: AdmissionRequest, state: QueueState, now_s: float) -> Admission | Rejection:
        """Return whether a request is admitted; an estimated one is never rejected for its own size alone."""
        if state.is_draining:
            return Rejection(reason="draining", error=DrainingError())
        prediction = self._latency_model.predict(request.cost, state.backlog)
        allowed_s = request.deadline_s - now_s
        if not request.is_estimate or prediction.unloaded_latency_s <= allowed_s:
            if late := self._check_deadline(prediction, allowed_s, now_s):
                return Rejection(reason="deadline", error=late)
            if full := self._check_capacity(request, state):
                return Rejection(reason="overloaded", error=full)
        return Admission(prediction=prediction)

    def _check_deadline(self, prediction: Prediction, allowed_s: float, now_s: float) -> DragomanError | None:
        margin = self._latency_model.margin.factor
        queueing_s = prediction.total_s - prediction.unloaded_latency_s
        needed_s = prediction.unloaded_latency_s + queueing_s * margin
        if allowed_s > 0 and (needed_s <= allowed_s or not self._latency_model.is_fresh(now_s)):
            return None
        if allowed_s <= 0 or prediction.unloaded_latency_s > allowed_s:  # retrying does not help
            return DeadlineExceededError("admission", needed_s=needed_s, allowed_s=max(0.0, allowed_s))
        retry_delay_s = self._latency_model.retry_delay_s((needed_s - allowed_s) / margin)
        return QueueDelayError(needed_s=needed_s, allowed_s=allowed_s, retry_after_s=retry_delay_s)

    def _check_capacity(self, request: AdmissionRequest, state: QueueState) -> OverloadedError | None:
        settings, cost = self._settings, request.cost
        mean_cost = state.decode_cost / max(1, state.num_segments)
        segments = state.num_segments, state.num_caller_segments, cost.num_segments, settings.max_queue_segments
        costs = state.decode_cost, state.caller_decode_cost, cost.decode_cost, settings.max_queue_decode_cost
        for unit, (queued, held, added, limit), cost_per_unit in (
            ("segments", segments, mean_cost),
            ("units of decode cost", costs, 1.0),
        ):
            excess = float(queued + added - limit)
            if excess > 0:
                return self._overloaded(unit, queued, limit, excess * cost_per_unit, state)
            if request.caller:
                share = settings.max_caller_queue_share
                threshold = math.floor(share * (limit - (queued - held)))
                if (excess := held + added - threshold) > 0:
                    # Of what leaves the queue, the caller can reuse its own turns and its share of the others' turns.
                    excess /= share + (1 - share) / state.num_callers
                    unit = f"{unit} of this caller"  # noqa: PLW2901
                    return self._overloaded(unit, held, threshold, excess * cost_per_unit, state)
        return None

    def _overloaded(self, unit: str, queued: int, limit: int, excess_cost: float, state: QueueState) -> OverloadedError:
        wait_s = self._latency_model.drain_time_s(min(math.ceil(excess_cost), state.decode_cost))
        retry_delay_s = self._latency_model.retry_delay_s(wait_s)
        return OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_delay_s)
