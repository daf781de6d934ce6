"""A running batch: segments join between steps, step together, and leave with their hypotheses."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from service.datatypes import Hypothesis, Segment
from service.decoding.beam_search import advance, conclude, find_ended
from service.decoding.beam_state import BeamState, indices_without
from service.decoding.constraints import CandidateRules
from service.decoding.step_model import StepModel

_MAX_ALPHA = 10.0  # beyond any use; keeps penalties finite at any length


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSegment:
    """A segment that left the batch by itself."""

    handle: int
    """What `Engine.start` returned for it."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first; empty only if the model gave no possible continuation (a broken network)."""

    num_steps: int
    """Decoder steps it took part in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did; the caller records it."""

    ended: tuple[EndedSegment, ...]
    num_segments: int
    """B of the step, those that ended counted."""

    num_rows: int
    """K of the step: rows of each segment, dead ones counted."""


def check_segment(segment: Segment, model: StepModel) -> None:
    """Check what the engine relies on; the translator has turned bad input away before.

    Raises:
        ValueError: if the segment has no place in a batch of this model.
    """
    search = segment.search
    _require(1 <= len(segment.source_ids) <= model.max_source_tokens, "source tokens", len(segment.source_ids))
    _require(search.beam_size >= 1, "beam_size", search.beam_size)
    _require(1 <= search.num_hypotheses <= search.beam_size, "num_hypotheses", search.num_hypotheses)
    _require(1 <= search.max_target_tokens <= model.max_target_tokens, "max_target_tokens", search.max_target_tokens)
    _require(search.min_target_tokens >= 0, "min_target_tokens", search.min_target_tokens)
    alpha = search.length_penalty_alpha
    _require(math.isfinite(alpha) and abs(alpha) <= _MAX_ALPHA, "length_penalty_alpha", alpha)


def _require(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"segment has {name} {value}, which the model or the search cannot take")


class Engine:
    """Decodes whatever segments are in it, one step at a time.

    One thread at a time may use it. A result does not depend on the neighbours of a segment or on when it joined,
    provided the model's rows do not. After an exception from the model the engine is of no further use.
    """

    def __init__(self, model: StepModel) -> None:
        self._vocabulary = model.vocabulary
        self._batch = model.new_batch()
        self._rules = CandidateRules(model.vocabulary)
        self._state = BeamState.starting([], bos_id=self._vocabulary.bos_id)
        self._handles: list[int] = []
        self._next_handle = 0

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._handles)

    def start(self, segments: Sequence[Segment]) -> list[int]:
        """Encode newcomers and add them to the batch; return a handle for each.

        Args:
            segments: at least one, each accepted by `check_segment`.
        """
        self._batch.start([segment.source_ids for segment in segments])
        newcomers = BeamState.starting([segment.search for segment in segments], bos_id=self._vocabulary.bos_id)
        if self._handles:
            self._state.append(newcomers)
        else:
            self._state = newcomers
        handles = list(range(self._next_handle, self._next_handle + len(segments)))
        self._next_handle += len(segments)
        self._handles += handles
        return handles

    def step(self) -> StepReport:
        """Extend every segment of a batch that is not empty by one token; those that end leave."""
        state, num_rows = self._state, self._state.num_live_rows
        output = self._batch.step(
            state.tokens[:, :num_rows],
            state.parents[:, :num_rows],
            num_candidates=self._rules.num_candidates(state.widest_beam),
        )
        advance(state, output, rules=self._rules, eos_id=self._vocabulary.eos_id)
        indices = find_ended(state)
        report = StepReport(
            ended=tuple(self._conclude(index) for index in indices), num_segments=state.num_segments, num_rows=num_rows
        )
        self._leave(indices)
        return report

    def drop(self, handles: Collection[int]) -> None:
        """Forget segments that nobody waits for any more."""
        self._leave([self._handles.index(handle) for handle in handles])

    def _conclude(self, index: int) -> EndedSegment:
        return EndedSegment(
            handle=self._handles[index],
            hypotheses=conclude(self._state, index, eos_id=self._vocabulary.eos_id),
            num_steps=int(self._state.lengths[index]),
        )

    def _leave(self, indices: Collection[int]) -> None:
        if not indices:
            return
        keep = indices_without(len(self._handles), indices)
        self._batch.drop(keep)
        self._state.keep(keep)
        self._handles = [self._handles[index] for index in keep]
