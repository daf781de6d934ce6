"""The arrays of a running batch of searches: options and live rows of every segment.

Sizes: B segments, K rows (the widest beam of the batch). A segment with a smaller beam has dead rows behind its own,
marked by a log-probability of -inf; live rows are sorted, best first, unless they are samples.
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
    """One step of all segments that were in the batch then; the arrays are not changed any more."""

    tokens: IntArray
    """[B, K]"""

    parents: IntArray
    """[B, K] row of the previous step that was continued."""

    log_probs: FloatArray
    """[B, K] natural log-probability of the token."""


class History:
    """The steps of a batch, each kept until all segments that took part in it have left.

    Nothing is moved when beams are reordered or segments leave: a step keeps the arrays that the search made, and each
    segment has a list of its indices into them and of the steps from which they hold.
    """

    def __init__(self, num_segments: int = 0) -> None:
        """Begin with segments that have taken no step."""
        self._steps: deque[_Step] = deque()
        self._first = 0  # number of the oldest step kept
        self._places: list[list[tuple[int, int]]] = []  # of each segment: number of a step and its index from there on
        self.add_segments(num_segments)

    def add_segments(self, count: int) -> None:
        """Append segments that have taken no step."""
        number, index = self._first + len(self._steps), len(self._places)
        self._places += [[(number, index + offset)] for offset in range(count)]

    def record(self, tokens: IntArray, parents: IntArray, log_probs: FloatArray) -> None:
        """Keep one step of every segment; the arrays, [B, K], must not be changed afterwards."""
        self._steps.append(_Step(tokens=tokens, parents=parents, log_probs=log_probs))

    def trace(self, segment: int, *, row: int, length: int) -> tuple[list[int], list[float]]:
        """Return tokens and their log-probabilities of the hypothesis that a row held after `length` steps."""
        places = self._places[segment]
        began, current = places[0][0], len(places) - 1
        tokens, log_probs = list[int](), list[float]()
        for number in range(began + length - 1, began - 1, -1):
            while places[current][0] > number:
                current -= 1
            step, at = self._steps[number - self._first], (places[current][1], row)
            tokens.append(step.tokens.item(at))
            log_probs.append(step.log_probs.item(at))
            row = step.parents.item(at)
        return tokens[::-1], log_probs[::-1]

    def keep(self, segments: Sequence[int]) -> None:
        """Forget all segments but these, which become 0, 1, ... in the order given."""
        number = self._first + len(self._steps)
        self._places = [self._places[segment] for segment in segments]
        for index, places in enumerate(self._places):
            if places[-1][1] != index:
                places.append((number, index))
        oldest = min((places[0][0] for places in self._places), default=number)
        while self._first < oldest:
            self._steps.popleft()
            self._first += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHypothesis:
    """A hypothesis that took EOS; its other tokens stay in the history until its segment leaves."""

    parent: int
    """Row that held it before EOS; meaningless if EOS is its only token."""

    length: int
    """Target tokens, EOS counted."""

    eos_log_prob: float
    log_prob: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamExpansion:
    """Hypotheses with one more token: N of each segment. The arrays may be changed until the state takes them."""

    log_probs: DoubleArray
    """[B, N] of the hypotheses, the token included, descending in N unless they are samples; -inf if forbidden or
    dead, which come last."""

    tokens: IntArray
    """[B, N]"""

    parents: IntArray
    """[B, N] rows that they continue."""

    steps: FloatArray
    """[B, N] log-probabilities of the tokens alone."""

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
        """Return these with at least `num_rows` rows a segment: there may have been too few candidates."""
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
    """Facts about all segments of a batch; computed when segments join or leave, not in every step."""

    widest_beam: int
    """K after a step: the largest beam of the batch."""

    is_beyond_beam: BoolArray | None
    """[B, K] True at rows that a segment's beam does not have; None if all beams are equally wide."""

    has_minimums: bool
    has_early_stops: bool
    has_prefixes: bool
    has_rules: bool
    is_plain: bool
    """Whether all are beam searches without prefixes and rules of their own."""

    sampled: tuple[int, ...]
    """Segments whose tokens are sampled."""

    guarded: tuple[int, ...]
    """Segments with the repetition guard."""

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
    """Everything the search knows of the segments of a batch, in the order of the `StepBatch`."""

    searches: list[SearchConfig]
    finished: list[list[FinishedHypothesis]]
    """The best `num_hypotheses` so far of each segment, best first."""

    target_rules: list[TargetRules | None]
    """Rules of the options of each segment; None if it has none."""

    samplers: list[Sampler | None]
    """Samples the tokens of each segment; None: beam search."""

    beam_sizes: IntArray
    """[B]"""

    min_tokens: IntArray
    """[B] `min_target_tokens`."""

    max_tokens: IntArray
    """[B] `max_target_tokens`."""

    prefix_lengths: IntArray
    """[B] tokens of `target_prefix`."""

    early_stopping: BoolArray
    """[B]"""

    bound_penalties: DoubleArray
    """[B] see `scoring.bound_penalty`."""

    is_masked: BoolArray
    """[B, P] placeholders that a segment must not take; see `CandidateRules.find_masked`. [B, 0]: none."""

    scores_to_beat: DoubleArray
    """[B] a hypothesis that finishes later must score higher to be kept: -inf while places are free."""

    num_finished: IntArray
    """[B] hypotheses that have finished, kept or not."""

    lengths: IntArray
    """[B] steps taken, which is the length of every live hypothesis."""

    log_probs: DoubleArray
    """[B, K] of the live hypotheses, descending in K unless they are samples; -inf for dead rows, which are last."""

    tokens: IntArray
    """[B, K] newest token of every row."""

    parents: IntArray
    """[B, K] row of the previous step that each row continues."""

    history: History

    steps_left: int = 0
    """Steps until a segment may have its longest target."""

    composition: Composition = field(init=False)

    def __post_init__(self) -> None:
        """Compute what depends on the segments."""
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
        """Return searches that have taken no step: one live row each, holding BOS.

        Without `target_rules` there are no rules, without `is_masked` no token is masked.
        """
        num_segments = len(searches)
        beam_sizes = np.array([search.beam_size for search in searches], np.int64)
        num_rows = int(beam_sizes.max(initial=1))
        log_probs = np.full((num_segments, num_rows), -np.inf)
        log_probs[:, 0] = 0.0
        return cls(
            searches=list(searches),
            finished=[[] for _ in searches],
            target_rules=list(target_rules or [None] * num_segments),
            samplers=[_sampler(search) for search in searches],
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
        """B."""
        return len(self.searches)

    @property
    def num_live_rows(self) -> int:
        """Rows the next step needs: those up to the last one that is live in any segment; at least 1."""
        width: int = self.log_probs.shape[1]
        if self.log_probs[:, -1].max(initial=-np.inf) > -np.inf:  # as in nearly all steps
            return width
        return max(1, int(np.isfinite(self.log_probs).any(axis=0).sum()))

    @property
    def widest_beam(self) -> int:
        """K after the next step: the largest beam of the batch."""
        return self.composition.widest_beam

    @property
    def forced(self) -> list[int]:
        """Segments whose next token is one of their prefix."""
        if not self.composition.has_prefixes:
            return []
        forced: list[int] = (self.lengths < self.prefix_lengths).nonzero()[0].tolist()
        return forced

    def num_live(self, segment: int) -> int:
        """Live rows of one segment; they are its first."""
        return int(np.isfinite(self.log_probs[segment]).sum())

    def append(self, other: "BeamState") -> None:
        """Add the segments of `other`, which have taken no step, behind these; `other` must not be used again."""
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
        """Forget all segments but these, which become 0, 1, ... in the order given."""
        indices = np.array(segments, np.int64)
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[indices])
        for name in _LISTS:
            setattr(self, name, [getattr(self, name)[segment] for segment in segments])
        self.history.keep(segments)
        self._compose()

    def keep_finished(self, segment: int, hypothesis: FinishedHypothesis) -> None:
        """Put a finished hypothesis in its place among those that would be returned."""
        search, finished = self.searches[segment], self.finished[segment]
        bisect.insort(finished, hypothesis, key=lambda other: -other.score)
        del finished[search.num_hypotheses :]
        if search.beam_size == 1:
            self.scores_to_beat[segment] = float("inf")  # greedy, or the only sample: the first EOS is the end
        elif len(finished) == search.num_hypotheses:
            self.scores_to_beat[segment] = finished[-1].score

    def extend(self, rows: BeamExpansion) -> None:
        """Give every row its next token."""
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


# The fields of BeamState that are lists with one entry a segment, and those that are arrays [B, ...].
_LISTS = ("searches", "finished", "target_rules", "samplers")
_ARRAYS = tuple(
    each.name for each in fields(BeamState) if each.name not in {*_LISTS, "history", "steps_left", "composition"}
)


def indices_without(num_segments: int, leaving: Iterable[int]) -> list[int]:
    """Return the segments that stay when some leave, moving as few as possible: the last ones fill the gaps.

    >>> indices_without(5, [1])
    [0, 4, 2, 3]
    """
    gone = set(leaving)
    num_kept = num_segments - len(gone)
    movers = [index for index in range(num_kept, num_segments) if index not in gone]
    return [movers.pop() if index in gone else index for index in range(num_kept)]


def _sampler(search: SearchConfig) -> Sampler | None:
    return Sampler(search.sampling, num_samples=search.num_hypotheses) if search.sampling else None


def _repeated(array: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """Return an array [B, K] widened to `num_rows` columns by repeating the first one."""
    width = array.shape[1]
    return array if width == num_rows else array[:, [*range(width), *[0] * (num_rows - width)]]


def _padded(array: NDArray[Any], shape: tuple[int, ...], *, fill: float) -> NDArray[Any]:
    """Return `array`, or a copy enlarged to `shape` with `fill` behind it."""
    if array.shape == shape:
        return array
    enlarged = np.full(shape, fill, array.dtype)
    enlarged[tuple(slice(size) for size in array.shape)] = array
    return enlarged
