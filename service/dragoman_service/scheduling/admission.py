"""Admission: predicts the latency of each request, and decides whether it is admitted.

The latency model learns the times of encoder, decoder and queue. Decode cost is counted in tokens: one for each source
token that the encoder reads and one for each row (hypothesis) that takes a decoder step. The model errs in favour of
the caller: without measurements a stage takes no time, and a batch size that was never measured is assumed to be as
fast as possible. `docs/internals/batching.md` describes it.

The policy is a pure function of queue, deadline and prediction; the scheduler acts on the decision. Nothing here is
thread-safe: the scheduler holds its lock.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    OverloadedError,
    QueueDelayError,
)
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput

# Upper bound of the learned number of steps, so that the cost of a request has a bound that is known in advance. If a
# model takes more steps, the learned seconds per unit of cost compensate.
MAX_STEPS_PER_SOURCE_TOKEN = 2

_DEFAULT_STEPS_PER_SOURCE_TOKEN = 1.0
_MIN_STEPS_PER_SOURCE_TOKEN = 0.1
_FRESH_S = 10.0  # after the last step of any batch
_DEFAULT_RETRY_DELAY_S = 1.0
_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.1, 60.0

_MIN_SAMPLES = 32
_DECAY_SAMPLES = 128  # samples after which the weight of a sample has fallen to 1 / e
_MAX_DEVIATION = 4.0  # a sample counts at most as this multiple of the expected value, and at least as 1 / this

_NUM_RATIOS = 128
_MIN_RATIOS = 16
_MIN_PREDICTED_S = 0.1  # relative errors of shorter predictions are large and harmless
_MIN_MARGIN = 2.5  # below, rejections slow answers down when requests begin to arrive faster than they are answered
_MAX_MARGIN = 4.0  # so that a stall does not reject every request with a deadline


class MovingRatio:
    """An exponentially weighted ratio, such as seconds per token, that is robust against outliers.

    The first samples are compared with their median, later ones with the current value: one stall moves the value by a
    few percent, and a lasting change is learned within a few hundred samples.
    """

    def __init__(self) -> None:
        self._first: list[tuple[float, float]] = []
        self._amount = 0.0
        self._per = 0.0

    @property
    def value(self) -> float | None:
        """The ratio; None until there are enough samples."""
        return self._amount / self._per if self._per else None

    def record(self, amount: float, *, per: float) -> None:
        """Record a sample of `amount` per `per` units; `per` is above 0."""
        if self.value is not None:
            self._add(amount, per, expected=self.value)
            return
        self._first.append((amount, per))
        if len(self._first) == _MIN_SAMPLES:
            median = statistics.median(amount / per for amount, per in self._first)
            for first in self._first:
                self._add(*first, expected=median)
            self._first.clear()

    def _add(self, amount: float, per: float, *, expected: float) -> None:
        usual = expected * per
        if usual > 0:
            amount = min(max(amount, usual / _MAX_DEVIATION), usual * _MAX_DEVIATION)
        decay = 1 - 1 / _DECAY_SAMPLES
        self._amount = self._amount * decay + amount
        self._per = self._per * decay + per


class LengthModel:
    """Predicts the number and the length of segments from the number of characters of a text."""

    def __init__(self) -> None:
        self._tokens_per_character = MovingRatio()
        self._segments_per_character = MovingRatio()
        # longest segment of a request relative to their mean, by the bit length of the number of segments
        self._longest_per_mean: dict[int, MovingRatio] = {}

    def record(self, num_characters: int, segments: Sequence[Segment]) -> None:
        """Record the segments of a request and the characters of its texts; 0: unknown."""
        if num_characters:
            num_tokens = sum(len(segment.source_ids) for segment in segments)
            self._tokens_per_character.record(num_tokens, per=num_characters)
            self._segments_per_character.record(len(segments), per=num_characters)
            longest = max(len(segment.source_ids) for segment in segments)
            ratio = self._longest_per_mean.setdefault(len(segments).bit_length(), MovingRatio())
            ratio.record(longest, per=num_tokens / len(segments))

    def expected_segments(self, num_characters: int, search: SearchConfig) -> list[Segment]:
        """Return the expected segments: one of the expected maximum length, the others of equal length.

        Empty until there are enough samples.
        """
        tokens, segments = self._tokens_per_character.value, self._segments_per_character.value
        if not (num_characters and tokens and segments):
            return []
        num_segments, num_tokens = max(1, round(num_characters * segments)), num_characters * tokens
        ratio = self._longest_per_mean.get(num_segments.bit_length())
        longest = min(num_tokens, num_tokens / num_segments * ((ratio and ratio.value) or 1.0))
        others = (num_tokens - longest) / max(1, num_segments - 1)
        lengths = [longest, *[others] * (num_segments - 1)]
        return [Segment(source_ids=(0,) * max(1, round(length)), search=search) for length in lengths]


class DeadlineMargin:
    """Safety factor for predicted queueing times: the largest ratio of actual to predicted time of recent requests.

    A prediction that is right on average is too short half of the time. The margin covers the effect of other requests
    on the queue, so it does not apply to the time that a request needs on an idle server.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_NUM_RATIOS)
        self.factor = _MIN_MARGIN  # 2.5 to 4

    def record(self, *, predicted_s: float, actual_s: float) -> None:
        """Record the predicted and the actual time from admission to the answer or to a missed deadline."""
        if predicted_s < _MIN_PREDICTED_S:
            return
        self._ratios.append(actual_s / predicted_s)
        if len(self._ratios) >= _MIN_RATIOS:
            self.factor = min(max(_MIN_MARGIN, *self._ratios), _MAX_MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """Expected cost of a request."""

    segment_costs: tuple[int, ...]  # decode cost of each segment, in order; at least one
    longest_source: int  # tokens, including EOS
    max_steps: int  # expected steps of the longest segment
    widest_beam: int

    @property
    def num_segments(self) -> int:
        """Segments of the request."""
        return len(self.segment_costs)

    @property
    def decode_cost(self) -> int:
        """Decode cost of all segments."""
        return sum(self.segment_costs)


class Backlog(NamedTuple):
    """Segments that are served before the last segment of a request."""

    num_queued: int = 0
    decode_cost: int = 0  # of the queued segments
    num_running: int = 0


NO_BACKLOG = Backlog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted time from the admission of a request to its last result."""

    total_s: float
    unloaded_latency_s: float  # on an idle server
    has_throughput: bool  # False until the throughput was measured: predictions are too short


class LatencyModel:
    """Learns how long the stages of a request take, and adds them up."""

    def __init__(self, settings: SchedulingSettings, *, num_batches: int) -> None:
        self._settings = settings
        self.num_batches = num_batches  # that admit segments at present
        self._busy_s_per_cost = MovingRatio()  # of a batch while more segments are queued than it admits
        self._encode_s_per_token = MovingRatio()
        self._step_s: dict[int, MovingRatio] = {}  # by the bit length of the number of rows
        self._steps_per_token = MovingRatio()
        self._recorded_at_s = -math.inf
        self.margin = DeadlineMargin()

    @property
    def steps_per_source_token(self) -> float:
        """Expected decoder steps per source token of a segment."""
        learned = self._steps_per_token.value
        ratio = _DEFAULT_STEPS_PER_SOURCE_TOKEN if learned is None else learned
        return min(max(ratio, _MIN_STEPS_PER_SOURCE_TOKEN), MAX_STEPS_PER_SOURCE_TOKEN)

    def record_step(self, output: BatchStepOutput, *, is_backlogged: bool, now_s: float) -> None:
        """Record steps of a batch; a backlogged batch runs at full throughput, as more is queued than it admits."""
        if output.num_encoded_tokens:
            self._encode_s_per_token.record(output.encode_s, per=output.num_encoded_tokens)
        if output.num_rows:
            step_s_of_size = self._step_s.setdefault(output.num_rows.bit_length(), MovingRatio())
            for step_s in (*output.earlier_steps_s, output.step_s):
                step_s_of_size.record(step_s, per=1)
            self._recorded_at_s = now_s
        if output.num_tokens:
            self._steps_per_token.record(output.num_steps, per=output.num_tokens)
        if is_backlogged and output.decode_cost:
            self._busy_s_per_cost.record(output.busy_s, per=output.decode_cost)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether there are recent measurements; old ones must not reject requests, or none would be made."""
        return now_s - self._recorded_at_s <= _FRESH_S

    def request_cost(self, segments: Sequence[Segment]) -> RequestCost:
        """Return the expected cost of a request with these segments, at least one."""
        steps = [_expected_steps(segment, self.steps_per_source_token) for segment in segments]
        return RequestCost(
            segment_costs=tuple(map(_decode_cost, segments, steps)),
            longest_source=max(len(segment.source_ids) for segment in segments),
            max_steps=max(steps),
            widest_beam=max(segment.search.beam_size for segment in segments),
        )

    def predict(self, cost: RequestCost, backlog: Backlog) -> Prediction:
        """Return when a request is answered: its last segment waits to join a batch and is decoded there."""
        return Prediction(
            total_s=self._latency_s(cost, backlog),
            unloaded_latency_s=self._latency_s(cost, NO_BACKLOG),
            has_throughput=self._busy_s_per_cost.value is not None,
        )

    def drain_time_s(self, decode_cost: int) -> float:
        """Return the seconds that all batches together need for queued work; 0 without measurements."""
        return decode_cost * (self._busy_s_per_cost.value or 0.0) / self.num_batches

    def retry_delay_s(self, excess_s: float) -> float:
        """Return the retry delay of a request that can be admitted after `excess_s` seconds of work."""
        if self._busy_s_per_cost.value is None:
            return _DEFAULT_RETRY_DELAY_S
        return min(max(excess_s, _MIN_RETRY_DELAY_S), _MAX_RETRY_DELAY_S)

    def _latency_s(self, cost: RequestCost, backlog: Backlog) -> float:
        capacity = min(self._settings.max_batch_segments, max(1, self._settings.max_batch_rows // cost.widest_beam))
        num_queued = backlog.num_queued + cost.num_segments
        num_free = max(0, self.num_batches * capacity - backlog.num_running)
        queued_share = max(0.0, 1 - num_free / num_queued)
        queueing_s = queued_share * self.drain_time_s(backlog.decode_cost + cost.decode_cost)
        batch_size = min(capacity, math.ceil((backlog.num_running + num_queued) / self.num_batches))
        encode_s = batch_size * cost.longest_source * (self._encode_s_per_token.value or 0.0)
        return queueing_s + encode_s + cost.max_steps * self._expected_step_s(batch_size * cost.widest_beam)

    def _expected_step_s(self, num_rows: int) -> float:
        """Return the duration of a step, from the nearest measured size that is not larger if there is one.

        A step of more rows is never shorter, and a step of half the rows takes at least half the time.
        """
        size = num_rows.bit_length()
        learned = {known: step_s.value for known, step_s in self._step_s.items() if step_s.value is not None}
        if smaller := [known for known in learned if known <= size]:
            return learned[max(smaller)]
        return min((step_s * 2.0 ** (size - known) for known, step_s in learned.items()), default=0.0)


def max_decode_cost(segments: Iterable[Segment]) -> int:
    """Return the largest decode cost that segments can be counted with, whatever was learned."""
    return sum(_decode_cost(segment, _expected_steps(segment, MAX_STEPS_PER_SOURCE_TOKEN)) for segment in segments)


def _decode_cost(segment: Segment, num_steps: int) -> int:
    return len(segment.source_ids) + segment.search.beam_size * num_steps


def _expected_steps(segment: Segment, steps_per_source_token: float) -> int:
    search = segment.search
    usual = round(len(segment.source_ids) * steps_per_source_token)
    forced = max(len(search.target_prefix), search.min_target_tokens) + 1  # EOS
    return min(max(usual, forced), search.max_target_tokens)


class QueueState(NamedTuple):
    """The queue as far as it concerns the admission of one request; a tuple, as one is made for each request."""

    num_segments: int = 0
    decode_cost: int = 0
    num_caller_segments: int = 0  # of the caller of the request
    caller_decode_cost: int = 0
    num_callers: int = 1  # with queued segments; at least 1
    backlog: Backlog = NO_BACKLOG  # served before the last segment of the request


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

    def decide(
        self, cost: RequestCost, context: RequestContext, state: QueueState, now_s: float, *, is_estimate: bool = False
    ) -> Prediction | Rejection:
        """Return the predicted latency of an admitted request, or the rejection.

        If the cost `is_estimate`, a request is never rejected for its own size alone. Requests of the server itself,
        without a caller, have no share.
        """
        prediction = self._latency_model.predict(cost, state.backlog)
        allowed_s = context.deadline_s - now_s
        if not is_estimate or prediction.unloaded_latency_s <= allowed_s:
            if late := self._check_deadline(prediction, allowed_s, now_s):
                return Rejection(reason="deadline", error=late)
            if full := self._check_capacity(cost, context.caller, state):
                return Rejection(reason="overloaded", error=full)
        return prediction

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

    def _check_capacity(self, cost: RequestCost, caller: str, state: QueueState) -> OverloadedError | None:
        settings = self._settings
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
            if caller:
                share = settings.max_caller_queue_share
                threshold = math.floor(share * (limit - (queued - held)))
                if (excess := held + added - threshold) > 0:
                    # The caller can reuse the room of all of its own segments, and its share of the room of others.
                    excess /= share + (1 - share) / state.num_callers
                    name = f"{unit} of this caller"
                    return self._overloaded(name, held, threshold, excess * cost_per_unit, state)
        return None

    def _overloaded(self, unit: str, queued: int, limit: int, excess_cost: float, state: QueueState) -> OverloadedError:
        wait_s = self._latency_model.drain_time_s(min(math.ceil(excess_cost), state.decode_cost))
        retry_delay_s = self._latency_model.retry_delay_s(wait_s)
        return OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_delay_s)
