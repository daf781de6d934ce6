"""State of the searches of a running batch: options, hypotheses and scores of each segment.

B segments have K rows each (the widest beam of the batch). A segment with a smaller beam has dead rows behind its own,
with a log-probability of -inf. Live rows are sorted, best first, unless they are samples.
"""

import bisect
import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.constraints import Sampler, TargetRules
from dragoman_service.decoding.step_model import BoolArray, DoubleArray, FloatArray, IntArray

_MIN_COVERAGE = 1e-6  # an attention weight may underflow to 0, whose logarithm is not finite


def length_penalty(length: int, *, alpha: float) -> float:
    """Return the length penalty, ((5 + length) / 6) ** alpha (Wu et al. 2016, arXiv:1609.08144, section 7).

    Args:
        length: target tokens including EOS, excluding BOS; at least 1.
        alpha: 0 disables the penalty; larger values favour longer hypotheses.

    Raises:
        ValueError: if length is below 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}, must be at least 1")
    return float(((5.0 + length) / 6.0) ** alpha)


@functools.lru_cache(maxsize=1024)
def length_penalties(longest: int, *, alpha: float) -> DoubleArray:
    """Return [longest + 1], the length penalty of each length; that of 0 is undefined. Read-only."""
    return np.array([math.nan, *(length_penalty(length, alpha=alpha) for length in range(1, longest + 1))])


def score(log_prob: float, *, length: int, alpha: float) -> float:
    """Return `log_prob` divided by the length penalty, for comparisons of hypotheses."""
    return log_prob / length_penalty(length, alpha=alpha)


def coverage_penalty(attention: FloatArray, *, beta: float) -> float:
    """Return the coverage penalty of a finished hypothesis, which is added to its score; 0 or less.

    cp(X; Y) = beta * sum_i log(min(sum_j p_ij, 1)), from Wu et al. 2016 (arXiv:1609.08144), section 7. The attention
    p_ij is the mean over the heads of the last decoder layer. EOS counts in source and target, as in the length.

    Args:
        attention: [L, H, T, S] from `StepBatch.cross_attention`, including EOS.
        beta: weight, at least 0.
    """
    attended = attention[-1].mean(axis=0, dtype=np.float64).sum(axis=0)  # [H, T, S] -> [S]
    return beta * float(np.log(attended.clip(_MIN_COVERAGE, 1.0)).sum())


def bound_penalty(search: SearchConfig) -> float:
    """Return the divisor that turns the log-probability of a live hypothesis into an upper bound of its final score.

    Every token adds 0 or less to a log-probability: a repetition penalty is a factor of at least 1, and tokens of a
    prefix add 0. So the final score is at most `log_prob / lp` for the largest length penalty among the lengths at
    which the hypothesis can end. The penalty is monotone in the length (rising for alpha > 0, falling for alpha < 0),
    so the largest one belongs to the shortest or to the longest length. A coverage penalty is 0 or less and only lowers
    the final score.
    """
    longest, alpha = search.max_target_tokens, search.length_penalty
    shortest = min(max(search.min_target_tokens, len(search.target_prefix)) + 1, longest)
    return max(length_penalty(shortest, alpha=alpha), length_penalty(longest, alpha=alpha))


def rank(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Sort hypotheses, best first: finished before unfinished, then by score. The sort is stable."""
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.is_finished, -hypothesis.score))


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
        return BeamExpansion(
            log_probs=_widened(self.log_probs, num_rows, dead=-np.inf),
            tokens=_widened(self.tokens, num_rows),
            parents=_widened(self.parents, num_rows),
            steps=_widened(self.steps, num_rows),
        )


class Composition:
    """Properties of all segments of a batch; computed when segments join or leave, not in each step."""

    def __init__(self, state: "BeamState") -> None:
        searches = state.searches
        beam_sizes = [search.beam_size for search in searches]
        self.widest_beam = max(beam_sizes, default=1)  # K after a step
        self.is_beyond_beam: BoolArray | None = None  # [B, K] rows beyond the beam of a segment; None: all are equal
        if min(beam_sizes, default=1) != self.widest_beam:
            self.is_beyond_beam = np.arange(self.widest_beam) >= state.beam_sizes[:, None]
        self.has_minimums = any(search.min_target_tokens for search in searches)
        self.has_early_stops = any(search.early_stopping for search in searches)
        self.has_prefixes = any(search.target_prefix for search in searches)
        self.has_rules = any(rules is not None for rules in state.target_rules)
        self.sampled = [segment for segment, sampler in enumerate(state.samplers) if sampler is not None]
        self.guarded = [segment for segment, search in enumerate(searches) if search.repetition_guard]
        # Whether all segments are beam searches without prefixes and rules of their own:
        self.is_plain = not (self.has_prefixes or self.has_rules or self.sampled)


class BeamState:
    """State of the searches of all segments of a batch, in the order of the `StepBatch`."""

    def __init__(
        self,
        searches: Sequence[SearchConfig],
        *,
        bos_id: int,
        target_rules: Sequence[TargetRules | None] | None = None,
        is_masked: BoolArray | None = None,
    ) -> None:
        """Start searches: one live row each, which holds BOS.

        Args:
            searches: options of each segment.
            bos_id: token id of BOS.
            target_rules: rules of each segment; None: no segment has any.
            is_masked: [B, P] forbidden placeholders, see `CandidateRules.find_masked`; None: no placeholder is.
        """
        num_segments = len(searches)
        # Lists with one entry per segment:
        self.searches = list(searches)
        self.finished: list[list[FinishedHypothesis]] = [[] for _ in searches]  # the best `num_hypotheses`, best first
        self.target_rules = list(target_rules or [None] * num_segments)
        self.samplers = [  # None: beam search
            Sampler(search.sampling, num_samples=search.num_hypotheses) if search.sampling else None
            for search in searches
        ]
        # Arrays [B] of the options:
        self.beam_sizes = np.array([search.beam_size for search in searches], np.int64)
        self.min_tokens = np.array([search.min_target_tokens for search in searches], np.int64)
        self.max_tokens = np.array([search.max_target_tokens for search in searches], np.int64)
        self.prefix_lengths = np.array([len(search.target_prefix) for search in searches], np.int64)
        self.early_stopping = np.array([search.early_stopping for search in searches], np.bool_)
        self.bound_penalties = np.array([bound_penalty(search) for search in searches], np.float64)
        self.is_masked = np.zeros((num_segments, 0), np.bool_) if is_masked is None else is_masked  # [B, P]
        # Arrays [B] of the progress:
        # A further finished hypothesis is kept if its score is higher; -inf until `num_hypotheses` have finished.
        self.scores_to_beat = np.full(num_segments, -np.inf)
        self.num_finished = np.zeros(num_segments, np.int64)  # hypotheses that have finished, kept or not
        self.lengths = np.zeros(num_segments, np.int64)  # steps taken, which is the length of each live hypothesis
        # Arrays [B, K] of the live hypotheses:
        shape = num_segments, int(self.beam_sizes.max(initial=1))
        self.log_probs = np.full(shape, -np.inf)  # descending in K unless they are samples; -inf for dead rows
        self.log_probs[:, 0] = 0.0
        self.tokens = np.full(shape, bos_id, np.int64)  # newest token of each row
        self.parents = np.zeros(shape, np.int64)  # continued row of the previous step
        self.history = History(num_segments)
        self._compose()

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
            state.log_probs = _widened(state.log_probs, num_rows, dead=-np.inf)
            state.tokens, state.parents = _widened(state.tokens, num_rows), _widened(state.parents, num_rows)
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
        self.composition = Composition(self)
        # Steps until a segment can reach its longest target:
        self.steps_left = int((self.max_tokens - self.lengths).min()) if self.searches else 0


# Attributes of BeamState that are lists with one entry per segment, and attributes that are arrays [B, ...].
_LISTS = ("searches", "finished", "target_rules", "samplers")
_ARRAYS = (
    *("beam_sizes", "min_tokens", "max_tokens", "prefix_lengths", "early_stopping", "bound_penalties", "is_masked"),
    *("scores_to_beat", "num_finished", "lengths", "log_probs", "tokens", "parents"),
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


def _widened(array: NDArray[Any], num_rows: int, *, dead: float | None = None) -> NDArray[Any]:
    """Return [B, num_rows or more]: further rows hold `dead`, or copy the first row."""
    num_missing = num_rows - array.shape[1]
    if num_missing <= 0:
        return array
    added = array[:, :1].repeat(num_missing, axis=1)
    if dead is not None:
        added[:] = dead
    return np.concatenate((array, added), axis=1)
