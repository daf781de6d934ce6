"""State of the searches of a running batch: options and live rows of each segment.

B segments have K rows each (the widest beam of the batch). A segment with a smaller beam has dead rows behind its own,
with a log-probability of -inf. Live rows are sorted, best first, unless they are samples.
"""

import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_service.datatypes import SearchConfig
from dragoman_service.decoding.constraints import Sampler, TargetRules
from dragoman_service.decoding.scoring import bound_penalty
from dragoman_service.decoding.step_model import BoolArray, DoubleArray, FloatArray, IntArray


class _Step(NamedTuple):
    tokens: IntArray  # [B, K]
    parents: IntArray  # [B, K] continued row of the previous step
    log_probs: FloatArray  # [B, K] natural log-probability of the token


class History:
    """Steps of a batch, each kept until all segments that took part in it have left.

    Reordered beams and leaving segments move no data: a step keeps the arrays of the search, and each segment has a
    list of its indices into them, each valid from one step on.
    """

    def __init__(self, num_segments: int = 0) -> None:
        self._steps: deque[_Step] = deque()
        self._first = 0  # number of the oldest kept step
        self._indices: list[list[tuple[int, int]]] = []  # by segment: number of a step, index from that step on
        self.add_segments(num_segments)

    def add_segments(self, count: int) -> None:
        """Append segments that have taken no step."""
        number, index = self._first + len(self._steps), len(self._indices)
        self._indices += [[(number, index + offset)] for offset in range(count)]

    def record(self, tokens: IntArray, parents: IntArray, log_probs: FloatArray) -> None:
        """Record one step of all segments; the arrays [B, K] must not be changed afterwards."""
        self._steps.append(_Step(tokens=tokens, parents=parents, log_probs=log_probs))

    def trace(self, segment: int, *, row: int, length: int) -> tuple[list[int], list[float]]:
        """Return the tokens of the hypothesis of a row after `length` steps, and their log-probabilities."""
        indices = self._indices[segment]
        began, current = indices[0][0], len(indices) - 1
        tokens, log_probs = list[int](), list[float]()
        for number in range(began + length - 1, began - 1, -1):
            while indices[current][0] > number:
                current -= 1
            step, at = self._steps[number - self._first], (indices[current][1], row)
            tokens.append(step.tokens.item(at))
            log_probs.append(step.log_probs.item(at))
            row = step.parents.item(at)
        return tokens[::-1], log_probs[::-1]

    def keep(self, segments: Sequence[int]) -> None:
        """Keep only these segments, which become 0, 1, ... in the order given."""
        number = self._first + len(self._steps)
        self._indices = [self._indices[segment] for segment in segments]
        for index, indices in enumerate(self._indices):
            if indices[-1][1] != index:
                indices.append((number, index))
        oldest = min((indices[0][0] for indices in self._indices), default=number)
        while self._first < oldest:
            self._steps.popleft()
            self._first += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHypothesis:
    """A hypothesis that ended with EOS; its other tokens are in the history."""

    parent: int  # row before EOS; undefined if EOS is the only token
    length: int  # target tokens, including EOS
    eos_log_prob: float
    log_prob: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamExpansion:
    """Hypotheses with one more token, N of each segment; the arrays can be changed until `BeamState.extend`."""

    log_probs: DoubleArray  # [B, N] of the hypotheses, descending in N unless they are samples; -inf: forbidden or dead
    tokens: IntArray  # [B, N]
    parents: IntArray  # [B, N] continued rows
    steps: FloatArray  # [B, N] of the tokens

    def put(
        self, segment: int, *, log_probs: DoubleArray, tokens: IntArray, parents: IntArray, steps: FloatArray
    ) -> None:
        """Replace the rows of one segment by N live ones, each array [N]; dead rows copy its first row."""
        num_live = len(log_probs)
        self.log_probs[segment] = -np.inf
        self.log_probs[segment, :num_live] = log_probs
        for array, values in ((self.tokens, tokens), (self.parents, parents)):
            array[segment] = values[0] if num_live else 0
            array[segment, :num_live] = values
        self.steps[segment, :num_live] = steps

    def widened(self, num_rows: int) -> "BeamExpansion":
        """Return the expansion with at least `num_rows` rows per segment: there may be too few candidates."""
        num_missing = num_rows - self.tokens.shape[1]
        if num_missing <= 0:
            return self
        dead = np.full((len(self.tokens), num_missing), -np.inf)
        return BeamExpansion(
            log_probs=np.concatenate((self.log_probs, dead), axis=1),
            tokens=_repeated(self.tokens, num_rows),  # dead rows copy the first row
            parents=_repeated(self.parents, num_rows),
            steps=_repeated(self.steps, num_rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Properties of all segments of a batch; computed when segments join or leave, not in each step."""

    widest_beam: int  # K after a step
    is_beyond_beam: BoolArray | None  # [B, K] True for rows beyond the beam of a segment; None if all beams are equal
    has_minimums: bool
    has_early_stops: bool
    has_prefixes: bool
    has_rules: bool
    is_plain: bool  # whether all segments are beam searches without prefixes and rules of their own
    sampled: tuple[int, ...]  # segments whose tokens are sampled
    guarded: tuple[int, ...]  # segments with `repetition_guard`

    @classmethod
    def of(cls, state: "BeamState") -> "Composition":
        """Return the composition of a state."""
        searches = state.searches
        beam_sizes = [search.beam_size for search in searches]
        widest_beam = max(beam_sizes, default=1)
        is_even = min(beam_sizes, default=1) == widest_beam
        has_prefixes = any(search.target_prefix for search in searches)
        has_rules = any(rules is not None for rules in state.target_rules)
        sampled = tuple(segment for segment, sampler in enumerate(state.samplers) if sampler is not None)
        return cls(
            widest_beam=widest_beam,
            is_beyond_beam=None if is_even else np.arange(widest_beam) >= state.beam_sizes[:, None],
            has_minimums=any(search.min_target_tokens for search in searches),
            has_early_stops=any(search.early_stopping for search in searches),
            has_prefixes=has_prefixes,
            has_rules=has_rules,
            is_plain=not (has_prefixes or has_rules or sampled),
            sampled=sampled,
            guarded=tuple(segment for segment, search in enumerate(searches) if search.repetition_guard),
        )


@dataclass(slots=True, kw_only=True)
class BeamState:
    """State of the searches of all segments of a batch, in the order of the `StepBatch`."""

    searches: list[SearchConfig]
    finished: list[list[FinishedHypothesis]]  # the best `num_hypotheses` of each segment, best first
    target_rules: list[TargetRules | None]  # of the options of each segment
    samplers: list[Sampler | None]  # None: beam search
    beam_sizes: IntArray  # [B]
    min_tokens: IntArray  # [B] `min_target_tokens`
    max_tokens: IntArray  # [B] `max_target_tokens`
    prefix_lengths: IntArray  # [B] tokens of `target_prefix`
    early_stopping: BoolArray  # [B]
    bound_penalties: DoubleArray  # [B] see `scoring.bound_penalty`
    is_masked: BoolArray  # [B, P] forbidden placeholders, see `CandidateRules.find_masked`; [B, 0]: none
    scores_to_beat: DoubleArray  # [B] minimum score of further finished hypotheses; -inf below `num_hypotheses`
    num_finished: IntArray  # [B] hypotheses that have finished, kept or not
    lengths: IntArray  # [B] steps taken, which is the length of each live hypothesis
    log_probs: DoubleArray  # [B, K] of the live hypotheses, descending in K unless they are samples; -inf for dead rows
    tokens: IntArray  # [B, K] newest token of each row
    parents: IntArray  # [B, K] continued row of the previous step
    history: History
    steps_left: int = 0  # until a segment can reach its longest target
    composition: Composition = field(init=False)

    def __post_init__(self) -> None:
        self._compose()

    @classmethod
    def starting(
        cls,
        searches: Sequence[SearchConfig],
        *,
        bos_id: int,
        target_rules: Sequence[TargetRules | None] | None = None,
        is_masked: BoolArray | None = None,
    ) -> "BeamState":
        """Return searches before their first step: one live row each, which holds BOS."""
        num_segments = len(searches)
        beam_sizes = np.array([search.beam_size for search in searches], np.int64)
        num_rows = int(beam_sizes.max(initial=1))
        log_probs = np.full((num_segments, num_rows), -np.inf)
        log_probs[:, 0] = 0.0
        return cls(
            searches=list(searches),
            finished=[[] for _ in searches],
            target_rules=list(target_rules or [None] * num_segments),
            samplers=[
                Sampler(search.sampling, num_samples=search.num_hypotheses) if search.sampling else None
                for search in searches
            ],
            beam_sizes=beam_sizes,
            min_tokens=np.array([search.min_target_tokens for search in searches], np.int64),
            max_tokens=np.array([search.max_target_tokens for search in searches], np.int64),
            prefix_lengths=np.array([len(search.target_prefix) for search in searches], np.int64),
            early_stopping=np.array([search.early_stopping for search in searches], np.bool_),
            is_masked=np.zeros((num_segments, 0), np.bool_) if is_masked is None else is_masked,
            bound_penalties=np.array([bound_penalty(search) for search in searches], np.float64),
            scores_to_beat=np.full(num_segments, -np.inf),
            num_finished=np.zeros(num_segments, np.int64),
            lengths=np.zeros(num_segments, np.int64),
            log_probs=log_probs,
            tokens=np.full((num_segments, num_rows), bos_id, np.int64),
            parents=np.zeros((num_segments, num_rows), np.int64),
            history=History(num_segments),
        )

    @property
    def num_segments(self) -> int:
        """Number of segments, B."""
        return len(self.searches)

    @property
    def num_live_rows(self) -> int:
        """Rows of the next step, up to the last one that is live in any segment; at least 1."""
        width: int = self.log_probs.shape[1]
        if self.log_probs[:, -1].max(initial=-np.inf) > -np.inf:  # as in nearly all steps
            return width
        return max(1, int(np.isfinite(self.log_probs).any(axis=0).sum()))

    @property
    def widest_beam(self) -> int:
        """K after the next step."""
        return self.composition.widest_beam

    @property
    def forced(self) -> list[int]:
        """Segments whose next token is a token of their prefix."""
        if not self.composition.has_prefixes:
            return []
        forced: list[int] = (self.lengths < self.prefix_lengths).nonzero()[0].tolist()
        return forced

    def num_live(self, segment: int) -> int:
        """Return the number of live rows of a segment, which are its first rows."""
        return int(np.isfinite(self.log_probs[segment]).sum())

    def append(self, other: "BeamState") -> None:
        """Append the segments of `other`, which have taken no step; `other` must not be used again."""
        num_rows = max(self.log_probs.shape[1], other.log_probs.shape[1])
        for state in (self, other):
            shape = (state.num_segments, num_rows)
            state.log_probs = _padded(state.log_probs, shape, fill=-np.inf)
            state.tokens = _repeated(state.tokens, num_rows)  # dead rows copy the first row
            state.parents = _repeated(state.parents, num_rows)
        for name in _ARRAYS:
            setattr(self, name, np.concatenate((getattr(self, name), getattr(other, name))))
        for name in _LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.history.add_segments(other.num_segments)
        self._compose()

    def keep(self, segments: Sequence[int]) -> None:
        """Keep only these segments, which become 0, 1, ... in the order given."""
        indices = np.array(segments, np.int64)
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[indices])
        for name in _LISTS:
            setattr(self, name, [getattr(self, name)[segment] for segment in segments])
        self.history.keep(segments)
        self._compose()

    def keep_finished(self, segment: int, hypothesis: FinishedHypothesis) -> None:
        """Insert a finished hypothesis into the best ones of its segment."""
        search, finished = self.searches[segment], self.finished[segment]
        bisect.insort(finished, hypothesis, key=lambda other: -other.score)
        del finished[search.num_hypotheses :]
        if search.beam_size == 1:
            self.scores_to_beat[segment] = float("inf")  # greedy, or a single sample: the first EOS ends the search
        elif len(finished) == search.num_hypotheses:
            self.scores_to_beat[segment] = finished[-1].score

    def extend(self, rows: BeamExpansion) -> None:
        """Append the next token to each row."""
        self.history.record(rows.tokens, rows.parents, rows.steps)
        self.log_probs, self.tokens, self.parents = rows.log_probs, rows.tokens, rows.parents
        self.lengths += 1
        self.steps_left -= 1
        for segment, rules in enumerate(self.target_rules if self.composition.has_rules else ()):
            if rules is not None and (num_live := self.num_live(segment)):
                rules.extend(self.tokens[segment, :num_live], self.parents[segment, :num_live])

    def _compose(self) -> None:
        self.composition = Composition.of(self)
        self.steps_left = int((self.max_tokens - self.lengths).min()) if self.searches else 0


# Fields of BeamState that are lists with one entry per segment, and fields that are arrays [B, ...].
_LISTS = ("searches", "finished", "target_rules", "samplers")
_ARRAYS = tuple(
    each.name for each in fields(BeamState) if each.name not in {*_LISTS, "history", "steps_left", "composition"}
)


def indices_without(num_segments: int, leaving: Iterable[int]) -> list[int]:
    """Return the remaining segments when some leave, moving as few as possible: the last ones fill the gaps.

    >>> indices_without(5, [1])
    [0, 4, 2, 3]
    """
    gone = set(leaving)
    num_kept = num_segments - len(gone)
    movers = [index for index in range(num_kept, num_segments) if index not in gone]
    return [movers.pop() if index in gone else index for index in range(num_kept)]


def _repeated(array: NDArray[Any], num_rows: int) -> NDArray[Any]:
    width = array.shape[1]
    return array if width == num_rows else array[:, [*range(width), *[0] * (num_rows - width)]]


def _padded(array: NDArray[Any], shape: tuple[int, ...], *, fill: float) -> NDArray[Any]:
    if array.shape == shape:
        return array
    enlarged = np.full(shape, fill, array.dtype)
    enlarged[tuple(slice(size) for size in array.shape)] = array
    return enlarged
