"""When an answer will be ready: a model of queue, encoder and steps, learned from what the batches report.

Work is counted in *work tokens*: one for each source token that the encoder reads and one for each row (hypothesis)
that takes a decoder step. The forecast errs in favour of the caller: what was never seen takes no time, and a batch of
a size that was never seen is taken to be as fast as possible. `docs/internals/batching.md` has the whole model.

Nothing here is thread-safe: the engine client guards it.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput

MAX_STEPS_PER_SOURCE_TOKEN = 2
"""The steps that a source token counts for are at most this, whatever was learned, so that the work of a request has a
bound that is known in advance. Where more are taken, the learned seconds for each work token make up for it."""

_UNKNOWN_STEPS_PER_SOURCE_TOKEN = 1.0
_MIN_STEPS_PER_SOURCE_TOKEN = 0.1
_EVIDENCE_LASTS_S = 10.0  # after the last step of any batch
_UNKNOWN_RETRY_S = 1.0  # before a rate is known
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0

_MIN_OBSERVATIONS = 32  # an estimate has no value before
_MEMORY = 128  # observations after which a past one counts e times less
_MAX_SURPRISE = 4.0  # one observation counts as at most so many times what was expected, and at least as 1 over it

_NUM_RATIOS = 128
_MIN_RATIOS = 16  # fewer do not change the margin
_MIN_PREDICTED_S = 0.1  # shorter forecasts are ignored: such waits may take many times as long without harm
_MIN_MARGIN = 2.5  # rejections cost, too: when calls begin to come faster than they are answered, answers slow down
_MAX_MARGIN = 4.0  # whatever a stall did, or no request with a deadline would be admitted after it


class Estimate:
    """An exponentially weighted ratio, such as seconds for each token, that no single observation can spoil.

    The first observations are judged by their median, later ones by what was learned before: a single stall moves the
    value by at most a few percent, while a lasting change is learned within a few hundred observations.
    """

    def __init__(self) -> None:
        self._first: list[tuple[float, float]] = []
        self._amount = 0.0
        self._per = 0.0

    @property
    def value(self) -> float | None:
        """The ratio; None as long as too little was observed."""
        return self._amount / self._per if self._per else None

    def record(self, amount: float, *, per: float) -> None:
        """Add an observation: an amount, for so much; `per` is above 0."""
        if self.value is None:
            self._first.append((amount, per))
            if len(self._first) == _MIN_OBSERVATIONS:
                median = statistics.median(amount / per for amount, per in self._first)
                for first in self._first:
                    self._add(*first, expected=median)
                self._first.clear()
        else:
            self._add(amount, per, expected=self.value)

    def _add(self, amount: float, per: float, *, expected: float) -> None:
        usual = expected * per
        if usual > 0:
            amount = min(max(amount, usual / _MAX_SURPRISE), usual * _MAX_SURPRISE)
        decay = 1 - 1 / _MEMORY
        self._amount = self._amount * decay + amount
        self._per = self._per * decay + per


class LengthEstimate:
    """Learns how many segments, of how many tokens, a character makes."""

    def __init__(self) -> None:
        self._tokens_per_character = Estimate()
        self._segments_per_character = Estimate()

    def learn(self, num_characters: int, segments: Sequence[Segment]) -> None:
        """Learn from the segments of a request whose texts have so many characters together; 0: unknown."""
        if num_characters:
            self._tokens_per_character.record(sum(len(one.source_ids) for one in segments), per=num_characters)
            self._segments_per_character.record(len(segments), per=num_characters)

    def expected_segments(self, num_characters: int, search: SearchConfig) -> list[Segment]:
        """Return segments of the number and length that texts are expected to become; none until that is known."""
        tokens, segments = self._tokens_per_character.value, self._segments_per_character.value
        if not (num_characters and tokens and segments):
            return []
        num_segments = max(1, round(num_characters * segments))
        source_ids = (0,) * max(1, round(num_characters * tokens / num_segments))
        return [Segment(source_ids=source_ids, search=search)] * num_segments


class DeadlineMargin:
    """How many times longer than forecast a wait may take: the worst of the latest answers.

    A forecast is right on average, so a request admitted with no time to spare would be late half of the time. The
    margin is for what other requests make of a wait; a request that need not wait needs none.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_NUM_RATIOS)
        self.factor = _MIN_MARGIN
        """What to multiply the forecast of a wait by, 2.5 to 4; 2.5 until something is known."""

    def record(self, *, predicted_s: float, actual_s: float) -> None:
        """Learn from an answer: its time from admission, as forecast and as it was (until a deadline, if missed)."""
        if predicted_s < _MIN_PREDICTED_S:
            return
        self._ratios.append(actual_s / predicted_s)
        if len(self._ratios) >= _MIN_RATIOS:
            self.factor = min(max(_MIN_MARGIN, *self._ratios), _MAX_MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """What a request needs."""

    works: tuple[int, ...]
    """Work tokens of each segment, in order; at least one."""

    longest_source: int
    """In tokens, EOS counted."""

    most_steps: int
    """Expected for the segment that takes most."""

    widest_beam: int

    @property
    def num_segments(self) -> int:
        """Segments of the request."""
        return len(self.works)

    @property
    def work(self) -> int:
        """Work tokens of all segments."""
        return sum(self.works)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAhead:
    """What is served before the last segment of a request."""

    num_waiting: int = 0
    """Segments in the queue."""

    work: int = 0
    """Of those."""

    num_running: int = 0
    """Segments in the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """When a request is expected to be answered, counted from its admission to its last answer."""

    total_s: float
    unloaded_latency_s: float
    """The same if nothing else was asked for."""

    has_throughput: bool
    """Whether it is known how fast waiting work is done, without which forecasts are too short."""


class Forecast:
    """Learns how long the parts of the work take, and adds them up."""

    def __init__(self, settings: SchedulingSettings, *, num_batches: int) -> None:
        self._settings = settings
        self._num_batches = num_batches
        self._busy_s_per_work = Estimate()  # of a batch, while more waits than it takes
        self._encode_s_per_token = Estimate()
        self._step_s: dict[int, Estimate] = {}  # by the bit length of the number of rows
        self._steps_per_token = Estimate()
        self._learned_at_s = -math.inf

    @property
    def steps_per_source_token(self) -> float:
        """How many steps a segment takes for each token of its source, as counted in its work."""
        learned = self._steps_per_token.value
        ratio = _UNKNOWN_STEPS_PER_SOURCE_TOKEN if learned is None else learned
        return min(max(ratio, _MIN_STEPS_PER_SOURCE_TOKEN), MAX_STEPS_PER_SOURCE_TOKEN)

    def learn(self, output: BatchStepOutput, *, is_backlogged: bool, now_s: float) -> None:
        """Learn from steps; a batch is backlogged, and so works at its full rate, if more waits than it can take."""
        if output.num_encoded_tokens:
            self._encode_s_per_token.record(output.encode_s, per=output.num_encoded_tokens)
        if output.num_rows:
            estimate = self._step_s.setdefault(output.num_rows.bit_length(), Estimate())
            for step_s in (*output.earlier_steps_s, output.step_s):
                estimate.record(step_s, per=1)
            self._learned_at_s = now_s
        if output.num_tokens:
            self._steps_per_token.record(output.num_steps, per=output.num_tokens)
        if is_backlogged and output.work:
            self._busy_s_per_work.record(output.busy_s, per=output.work)

    def is_convincing(self, now_s: float) -> bool:
        """Say whether what was learned is fresh enough to reject a request; rejecting all would never find out."""
        return now_s - self._learned_at_s <= _EVIDENCE_LASTS_S

    def expected_steps(self, segment: Segment) -> int:
        """Return the decoder steps that a segment is expected to take."""
        return _num_steps(segment, self.steps_per_source_token)

    def request_cost(self, segments: Sequence[Segment]) -> RequestCost:
        """Return what a request of these segments, at least one, is expected to need."""
        steps = [self.expected_steps(segment) for segment in segments]
        return RequestCost(
            works=tuple(map(_work, segments, steps)),
            longest_source=max(len(segment.source_ids) for segment in segments),
            most_steps=max(steps),
            widest_beam=max(segment.search.beam_size for segment in segments),
        )

    def predict(self, cost: RequestCost, ahead: WorkAhead) -> Prediction:
        """Return when a request will be answered: its last segment waits to join a batch, and is decoded there."""
        return Prediction(
            total_s=self._finish_in_s(cost, ahead),
            unloaded_latency_s=self._finish_in_s(cost, WorkAhead()),
            has_throughput=self._busy_s_per_work.value is not None,
        )

    def work_done_in_s(self, work: int) -> float:
        """Return the seconds that all batches together need for so much work; 0 as long as nothing is known."""
        return work * (self._busy_s_per_work.value or 0.0) / self._num_batches

    def retry_after_s(self, *, excess_s: float) -> float:
        """Return when to retry a rejected request that could be admitted after so many seconds of work."""
        if self._busy_s_per_work.value is None:
            return _UNKNOWN_RETRY_S
        return min(max(excess_s, _MIN_RETRY_S), _MAX_RETRY_S)

    def _finish_in_s(self, cost: RequestCost, ahead: WorkAhead) -> float:
        capacity = min(self._settings.max_batch_segments, max(1, self._settings.max_batch_rows // cost.widest_beam))
        num_before = ahead.num_waiting + cost.num_segments
        num_free = max(0, self._num_batches * capacity - ahead.num_running)
        waiting_share = max(0.0, 1 - num_free / num_before)
        wait_s = waiting_share * self.work_done_in_s(ahead.work + cost.work)
        num_neighbours = min(capacity, math.ceil((ahead.num_running + num_before) / self._num_batches))
        encode_s = num_neighbours * cost.longest_source * (self._encode_s_per_token.value or 0.0)
        return wait_s + encode_s + cost.most_steps * self._expected_step_s(num_neighbours * cost.widest_beam)

    def _expected_step_s(self, num_rows: int) -> float:
        """Return the time of a step, optimistic for batches of a size not seen: from smaller ones rather than larger.

        More rows never make a step shorter, and a step of half the rows takes at least half the time.
        """
        size = num_rows.bit_length()
        learned = {seen: estimate.value for seen, estimate in self._step_s.items() if estimate.value is not None}
        if smaller := [seen for seen in learned if seen <= size]:
            return learned[max(smaller)]
        return min((step_s * 2.0 ** (size - seen) for seen, step_s in learned.items()), default=0.0)


def most_work(segments: Iterable[Segment]) -> int:
    """Return the work tokens that segments count for at most, whatever was learned."""
    return sum(_work(segment, _num_steps(segment, MAX_STEPS_PER_SOURCE_TOKEN)) for segment in segments)


def _work(segment: Segment, num_steps: int) -> int:
    return len(segment.source_ids) + segment.search.beam_size * num_steps


def _num_steps(segment: Segment, per_source_token: float) -> int:
    search = segment.search
    usual = round(len(segment.source_ids) * per_source_token)
    forced = max(len(search.target_prefix), search.min_target_tokens) + 1  # and EOS
    return min(max(usual, forced), search.max_target_tokens)
