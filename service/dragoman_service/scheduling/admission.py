"""Admission policy: decides from the queue, the deadline and the latency model whether a request is admitted.

The decision is a pure function: it takes no lock, reads no clock and counts nothing. The scheduler acts on it.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    OverloadedError,
    QueueDelayError,
)
from dragoman_service.scheduling.latency_model import Backlog, LatencyModel, Prediction, RequestCost
from dragoman_service.scheduling.settings import SchedulingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A request that asks to be admitted as a whole."""

    cost: RequestCost
    caller: str = ""  # empty for requests of the server itself, which have no share
    deadline_s: float = math.inf
    is_estimate: bool = False  # whether the cost is estimated from the length of the texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Use of one resource by all callers, and by the caller of the request."""

    total: int = 0
    caller: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The queue as far as it concerns the admission of one request."""

    segments: Occupancy = field(default_factory=Occupancy)
    decode_cost: Occupancy = field(default_factory=Occupancy)
    num_callers: int = 1  # with queued segments; at least 1
    backlog: Backlog = field(default_factory=Backlog)  # served before the last segment of the request
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The request is admitted."""

    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
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
        mean_cost = state.decode_cost.total / max(1, state.segments.total)
        for unit, used, added, limit, cost_per_unit in (
            ("segments", state.segments, cost.num_segments, settings.max_queue_segments, mean_cost),
            ("units of decode cost", state.decode_cost, cost.decode_cost, settings.max_queue_decode_cost, 1.0),
        ):
            excess = float(used.total + added - limit)
            if excess > 0:
                return self._overloaded(unit, used.total, limit, excess * cost_per_unit, state)
            if request.caller:
                share = settings.max_caller_queue_share
                threshold = math.floor(share * (limit - (used.total - used.caller)))
                if (excess := used.caller + added - threshold) > 0:
                    # Of what leaves the queue, the caller can reuse its own turns and its share of the others' turns.
                    excess /= share + (1 - share) / state.num_callers
                    unit = f"{unit} of this caller"  # noqa: PLW2901
                    return self._overloaded(unit, used.caller, threshold, excess * cost_per_unit, state)
        return None

    def _overloaded(self, unit: str, queued: int, limit: int, excess_cost: float, state: QueueState) -> OverloadedError:
        wait_s = self._latency_model.drain_time_s(min(math.ceil(excess_cost), state.decode_cost.total))
        retry_delay_s = self._latency_model.retry_delay_s(wait_s)
        return OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_delay_s)
