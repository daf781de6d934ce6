"""The arrays of a running batch of searches: options, live rows and token histories of every segment.

Sizes: B segments, K rows (the widest beam of the batch), T steps of room. A segment with a smaller beam has dead
rows behind its own, marked by a log-probability of -inf; live rows are sorted, best first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.datatypes import SearchConfig
from service.decoding.scoring import bound_penalty
from service.decoding.step_model import FloatArray, IntArray

DoubleArray = NDArray[np.float64]

_HISTORY_STEPS = 64  # room of a new history, and at least what it grows by


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


@dataclass(slots=True, kw_only=True)
class History:
    """The token each row took at each step and the row it continued; hypotheses are read back from their ends.

    Nothing is moved when beams are reordered, so a step costs three small writes.
    """

    tokens: NDArray[np.int32]
    """[B, T, K]"""

    parents: NDArray[np.int32]
    """[B, T, K] row of the previous step that was continued."""

    log_probs: FloatArray
    """[B, T, K] natural log-probability of the token."""

    @classmethod
    def empty(cls, num_segments: int, num_rows: int) -> "History":
        """Return room for new segments."""
        shape = (num_segments, _HISTORY_STEPS, num_rows)
        return cls(
            tokens=np.zeros(shape, np.int32), parents=np.zeros(shape, np.int32), log_probs=np.zeros(shape, np.float32)
        )

    def record(self, lengths: IntArray, tokens: IntArray, parents: IntArray, log_probs: FloatArray) -> None:
        """Write one step of every segment; `lengths` [B] are those before the step, the others are [B, K]."""
        longest = int(lengths.max(initial=0))
        num_segments, num_steps, num_rows = self.tokens.shape
        if longest >= num_steps:
            self._resize((num_segments, 2 * num_steps, num_rows))
        segments = np.arange(num_segments)
        width = tokens.shape[1]
        self.tokens[segments, lengths, :width] = tokens
        self.parents[segments, lengths, :width] = parents
        self.log_probs[segments, lengths, :width] = log_probs

    def trace(self, segment: int, *, row: int, length: int) -> tuple[list[int], list[float]]:
        """Return tokens and their log-probabilities of the hypothesis that row `row` held after `length` steps."""
        tokens, parents, log_probs = (
            array[segment, :length].tolist() for array in (self.tokens, self.parents, self.log_probs)
        )
        rows = []
        for step in range(length - 1, -1, -1):
            rows.append(row)
            row = parents[step][row]
        rows.reverse()
        return [tokens[step][row] for step, row in enumerate(rows)], [
            log_probs[step][row] for step, row in enumerate(rows)
        ]

    def append(self, other: "History") -> None:
        """Add the segments of `other` behind these; `other` may be changed."""
        num_steps, num_rows = np.maximum(self.tokens.shape[1:], other.tokens.shape[1:]).tolist()
        for history in (self, other):
            history._resize((history.tokens.shape[0], num_steps, num_rows))
        self.tokens = np.concatenate((self.tokens, other.tokens))
        self.parents = np.concatenate((self.parents, other.parents))
        self.log_probs = np.concatenate((self.log_probs, other.log_probs))

    def keep(self, segments: IntArray) -> None:
        """Forget all segments but these, which become 0, 1, ... in the order given."""
        self.tokens = self.tokens[segments]
        self.parents = self.parents[segments]
        self.log_probs = self.log_probs[segments]

    def _resize(self, shape: tuple[int, ...]) -> None:
        self.tokens = _padded(self.tokens, shape, fill=0)
        self.parents = _padded(self.parents, shape, fill=0)
        self.log_probs = _padded(self.log_probs, shape, fill=0)


@dataclass(slots=True, kw_only=True)
class BeamState:
    """Everything the search knows of the segments of a batch, in the order of the `StepBatch`."""

    searches: list[SearchConfig]
    finished: list[list[FinishedHypothesis]]
    """The best `num_hypotheses` so far of each segment, best first."""

    beam_sizes: IntArray
    """[B]"""

    min_tokens: IntArray
    """[B] `min_target_tokens`."""

    max_tokens: IntArray
    """[B] `max_target_tokens`."""

    bound_penalties: DoubleArray
    """[B] see `scoring.bound_penalty`."""

    scores_to_beat: DoubleArray
    """[B] a hypothesis that finishes later must score higher to be kept: -inf while places are free."""

    lengths: IntArray
    """[B] steps taken, which is the length of every live hypothesis."""

    log_probs: DoubleArray
    """[B, K] of the live hypotheses, descending in K; -inf for dead rows."""

    tokens: IntArray
    """[B, K] newest token of every row."""

    parents: IntArray
    """[B, K] row of the previous step that each row continues."""

    history: History

    @classmethod
    def starting(cls, searches: Sequence[SearchConfig], *, bos_id: int) -> "BeamState":
        """Return searches that have taken no step: one live row each, holding BOS."""
        num_segments = len(searches)
        beam_sizes = np.array([search.beam_size for search in searches], np.int64)
        num_rows = int(beam_sizes.max(initial=1))
        log_probs = np.full((num_segments, num_rows), -np.inf)
        log_probs[:, 0] = 0.0
        return cls(
            searches=list(searches),
            finished=[[] for _ in searches],
            beam_sizes=beam_sizes,
            min_tokens=np.array([search.min_target_tokens for search in searches], np.int64),
            max_tokens=np.array([search.max_target_tokens for search in searches], np.int64),
            bound_penalties=np.array([bound_penalty(search) for search in searches], np.float64),
            scores_to_beat=np.full(num_segments, -np.inf),
            lengths=np.zeros(num_segments, np.int64),
            log_probs=log_probs,
            tokens=np.full((num_segments, num_rows), bos_id, np.int64),
            parents=np.zeros((num_segments, num_rows), np.int64),
            history=History.empty(num_segments, num_rows),
        )

    @property
    def num_segments(self) -> int:
        """B."""
        return len(self.searches)

    @property
    def num_live_rows(self) -> int:
        """Rows the next step needs: those up to the last one that is live in any segment; at least 1."""
        return max(1, int(np.isfinite(self.log_probs).any(axis=0).sum()))

    @property
    def widest_beam(self) -> int:
        """K of the step's outcome: the largest beam of the batch."""
        return int(self.beam_sizes.max(initial=1))

    def append(self, other: "BeamState") -> None:
        """Add the segments of `other` behind these; `other` must not be used again."""
        num_rows = max(self.log_probs.shape[1], other.log_probs.shape[1])
        for state in (self, other):
            shape = (state.num_segments, num_rows)
            state.log_probs = _padded(state.log_probs, shape, fill=-np.inf)
            state.tokens = _padded(state.tokens, shape, fill=0)
            state.parents = _padded(state.parents, shape, fill=0)
        for name in _ARRAYS:
            setattr(self, name, np.concatenate((getattr(self, name), getattr(other, name))))
        self.searches += other.searches
        self.finished += other.finished
        self.history.append(other.history)

    def keep(self, segments: Sequence[int]) -> None:
        """Forget all segments but these, which become 0, 1, ... in the order given."""
        indices = np.array(segments, np.int64)
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[indices])
        self.searches = [self.searches[segment] for segment in segments]
        self.finished = [self.finished[segment] for segment in segments]
        self.history.keep(indices)

    def extend(self, *, log_probs: DoubleArray, tokens: IntArray, parents: IntArray, steps: FloatArray) -> None:
        """Give every row its next token.

        Args:
            log_probs: [B, K] of the extended hypotheses, descending in K, -inf for dead rows.
            tokens: [B, K]
            parents: [B, K] row that each new row continues.
            steps: [B, K] log-probability of the new token alone.
        """
        self.history.record(self.lengths, tokens, parents, steps)
        self.log_probs, self.tokens, self.parents = log_probs, tokens, parents
        self.lengths += 1


# The fields of BeamState whose first axis is the segment.
_ARRAYS = (
    "beam_sizes",
    "min_tokens",
    "max_tokens",
    "bound_penalties",
    "scores_to_beat",
    "lengths",
    "log_probs",
    "tokens",
    "parents",
)


def indices_without(num_segments: int, leaving: Iterable[int]) -> list[int]:
    """Return what stays when some segments leave, moving as few as possible: the last ones fill the holes.

    >>> indices_without(5, [1])
    [0, 4, 2, 3]
    """
    gone = set(leaving)
    num_kept = num_segments - len(gone)
    movers = [index for index in range(num_kept, num_segments) if index not in gone]
    return [movers.pop() if index in gone else index for index in range(num_kept)]


def _padded(array: NDArray[Any], shape: tuple[int, ...], *, fill: float) -> NDArray[Any]:
    """Return `array`, or a copy enlarged to `shape` with `fill` behind it."""
    if array.shape == shape:
        return array
    enlarged = np.full(shape, fill, array.dtype)
    enlarged[tuple(slice(size) for size in array.shape)] = array
    return enlarged
