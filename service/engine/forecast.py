"""When an answer will be there: a model of queue, encoder and steps, learned from the turns of the decoding threads.

Work is counted in *work tokens*: one for each source token that the encoder reads and one for each row (hypothesis)
that takes a decoder step. A segment is expected to need

    source tokens + beam size * expected steps

where the expected steps are the learned steps for each source token times the source tokens, at least what a prefix or
a minimum length forces, at most `max_target_tokens`.

The forecast is made to be wrong in favour of the caller. What was never seen takes no time, a batch of a size that was
never seen is taken to be as fast as possible, and what was learned convinces nobody once no thread has worked for some
seconds: it might be different now, and refusing everybody would never find out.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from service.datatypes import SearchConfig, Segment
from service.engine.protocol import Turn

_MIN_OBSERVATIONS = 32  # before, nothing is said
_MEMORY = 128  # observations after which a past one counts e times less
_MAX_SURPRISE = 4.0  # one observation counts as at most so many times what was expected, and at least as 1 over it


class Estimate:
    """An exponentially weighted ratio, such as seconds for each token.

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
                self._begin()
        else:
            self._add(amount, per, expected=self.value)

    def _begin(self) -> None:
        median = statistics.median(amount / per for amount, per in self._first)
        for amount, per in self._first:
            self._add(amount, per, expected=median)
        self._first.clear()

    def _add(self, amount: float, per: float, *, expected: float) -> None:
        usual = expected * per
        if usual > 0:
            amount = min(max(amount, usual / _MAX_SURPRISE), usual * _MAX_SURPRISE)
        decay = 1 - 1 / _MEMORY
        self._amount = self._amount * decay + amount
        self._per = self._per * decay + per


_NUM_REMEMBERED = 128
_NUM_CONVINCING = 16  # fewer say nothing
_LEAST_PREDICTED_S = 0.1  # shorter forecasts are not looked at: such waits may take many times as long without harm
_MIN_FACTOR = 2.5  # refusals cost, too: when calls begin to come faster than they are answered, answers slow down
_MAX_FACTOR = 4.0  # whatever a stall did, or nobody with a deadline would be let in after it


class Headroom:
    """The longest of the latest answers, each by its forecast; not thread-safe: the scheduler guards it.

    A forecast is right on average, and whoever is admitted on it with no time to spare is late half of the time. The
    room is for what others make of a wait; who need not wait needs none.
    """

    def __init__(self) -> None:
        """Begin without experience."""
        self._ratios: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._factor = _MIN_FACTOR

    @property
    def factor(self) -> float:
        """What to multiply the forecast of a wait by, 2.5 to 4; 2.5 until something is known."""
        return self._factor

    def record(self, *, predicted_s: float, actual_s: float) -> None:
        """Take notice of an answer.

        Args:
            predicted_s: from admission to the answer, as forecast.
            actual_s: as it was; for one that missed its deadline, until then.
        """
        if predicted_s < _LEAST_PREDICTED_S:
            return
        self._ratios.append(actual_s / predicted_s)
        if len(self._ratios) >= _NUM_CONVINCING:
            self._factor = min(max(_MIN_FACTOR, *self._ratios), _MAX_FACTOR)


_STAND_IN_ID = 0


class TextSizes:
    """Learns how many segments, of how many tokens, a character makes; not thread-safe: the scheduler guards it."""

    def __init__(self) -> None:
        self._tokens_per_character = Estimate()
        self._segments_per_character = Estimate()

    def learn(self, num_characters: int, segments: Sequence[Segment]) -> None:
        """Take notice of what the texts of a request, of so many characters together, became."""
        if num_characters:
            num_tokens = sum(len(segment.source_ids) for segment in segments)
            self._tokens_per_character.record(num_tokens, per=num_characters)
            self._segments_per_character.record(len(segments), per=num_characters)

    def stand_ins(self, num_characters: int, search: SearchConfig) -> list[Segment]:
        """Return segments such as the texts of a request are expected to become; none as long as nothing is known."""
        tokens, segments = self._tokens_per_character.value, self._segments_per_character.value
        if not (num_characters and tokens and segments):
            return []
        num_segments = max(1, round(num_characters * segments))
        source_ids = (_STAND_IN_ID,) * max(1, round(num_characters * tokens / num_segments))
        return [Segment(source_ids=source_ids, search=search)] * num_segments


MAX_STEPS_PER_SOURCE_TOKEN = 2
"""The steps that a source token counts for are at most this, whatever was learned, so that the work of a request has a
bound that is known in advance. Where more are taken, the learned seconds for each work token make up for it."""

_UNKNOWN_STEPS_PER_SOURCE_TOKEN = 1.0
_MIN_STEPS_PER_SOURCE_TOKEN = 0.1
_EVIDENCE_LASTS_S = 10.0  # after the last turn of any thread
_UNKNOWN_RETRY_S = 1.0  # before a rate is known
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request asks for."""

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
class Backlog:
    """What is served before the last segment of a request."""

    num_waiting: int = 0
    """Segments in the queue."""

    work: int = 0
    """Of those."""

    num_running: int = 0
    """Segments in the batches."""


class Forecast:
    """Learns what work takes and predicts what a request will take; not thread-safe: the scheduler guards it.

    Only `expected_work` and `demand` may be asked by any thread at any time.
    """

    def __init__(self, *, num_threads: int, max_batch_segments: int, max_batch_rows: int) -> None:
        self._num_threads = num_threads
        self._max_batch_segments = max_batch_segments
        self._max_batch_rows = max_batch_rows
        self._busy_s_per_work = Estimate()  # of a thread, while more waits than its batch takes
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

    def learn(self, turn: Turn, *, is_backlogged: bool, now_s: float) -> None:
        """Take notice of a turn of a thread.

        Args:
            turn: what it did.
            is_backlogged: whether more waited than the thread could take, so that it worked at its full rate.
            now_s: when it ended.
        """
        if turn.num_encoded_tokens:
            self._encode_s_per_token.record(turn.encode_s, per=turn.num_encoded_tokens)
        if turn.num_rows:
            self._step_s.setdefault(turn.num_rows.bit_length(), Estimate()).record(turn.step_s, per=1)
            self._learned_at_s = now_s
        if turn.num_tokens:
            self._steps_per_token.record(turn.num_steps, per=turn.num_tokens)
        if is_backlogged and turn.work:
            self._busy_s_per_work.record(turn.busy_s, per=turn.work)

    @property
    def knows_rate(self) -> bool:
        """Whether it knows how fast a backlog is worked off, without which forecasts are too short."""
        return self._busy_s_per_work.value is not None

    def is_convincing(self, now_s: float) -> bool:
        """Say whether what was learned is fresh enough to refuse somebody."""
        return now_s - self._learned_at_s <= _EVIDENCE_LASTS_S

    def expected_steps(self, segment: Segment) -> int:
        """Return the decoder steps that a segment is expected to take."""
        search = segment.search
        usual = round(len(segment.source_ids) * self.steps_per_source_token)
        forced = max(len(search.target_prefix), search.min_target_tokens) + 1  # and EOS
        return min(max(usual, forced), search.max_target_tokens)

    def expected_work(self, segment: Segment) -> int:
        """Return the work tokens that a segment is expected to need."""
        return len(segment.source_ids) + segment.search.beam_size * self.expected_steps(segment)

    def demand(self, segments: Sequence[Segment]) -> Demand:
        """Return what a request of these segments, at least one, asks for."""
        return Demand(
            works=tuple(map(self.expected_work, segments)),
            longest_source=max(len(segment.source_ids) for segment in segments),
            most_steps=max(map(self.expected_steps, segments)),
            widest_beam=max(segment.search.beam_size for segment in segments),
        )

    def finish_in_s(self, demand: Demand, backlog: Backlog) -> float:
        """Return the seconds until a request is answered: until its last segment has a place, then in the batch."""
        places = min(self._max_batch_segments, max(1, self._max_batch_rows // demand.widest_beam))
        num_before = backlog.num_waiting + demand.num_segments
        num_free = max(0, self._num_threads * places - backlog.num_running)
        waiting_share = max(0.0, 1 - num_free / num_before)
        wait_s = waiting_share * self.working_off_s(backlog.work + demand.work)
        num_neighbours = min(places, math.ceil((backlog.num_running + num_before) / self._num_threads))
        return wait_s + self._in_batch_s(demand, num_neighbours)

    def working_off_s(self, work: int) -> float:
        """Return the seconds that all threads together need for so much work; 0 as long as nothing is known."""
        return work * (self._busy_s_per_work.value or 0.0) / self._num_threads

    def retry_after_s(self, *, excess_s: float) -> float:
        """Return when somebody refused should come back, who could be admitted after so many seconds of work."""
        if self._busy_s_per_work.value is None:
            return _UNKNOWN_RETRY_S
        return min(max(excess_s, _MIN_RETRY_S), _MAX_RETRY_S)

    def _in_batch_s(self, demand: Demand, num_segments: int) -> float:
        """Return the time in a batch of so many segments: their encoder runs and the steps taken together."""
        encode_s = num_segments * demand.longest_source * (self._encode_s_per_token.value or 0.0)
        return encode_s + demand.most_steps * self._expected_step_s(num_segments * demand.widest_beam)

    def _expected_step_s(self, num_rows: int) -> float:
        """Return the time of a step, optimistic for batches of a size not seen: from smaller ones rather than larger.

        More rows never make a step shorter, and a step of half the rows takes at least half the time.
        """
        size = num_rows.bit_length()
        learned = {seen: estimate.value for seen, estimate in self._step_s.items() if estimate.value is not None}
        if smaller := [seen for seen in learned if seen <= size]:
            return learned[max(smaller)]
        return min((step_s * 2.0 ** (size - seen) for seen, step_s in learned.items()), default=0.0)
