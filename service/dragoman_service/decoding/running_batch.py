"""A running batch: segments join between steps, step together, and leave with their hypotheses."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman_service.datatypes import SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.beam_search import (
    SearchingBatch,
    advance,
    advance_ranked,
    conclude,
    find_ended,
    num_candidates,
)
from dragoman_service.decoding.beam_state import BeamState, indices_without
from dragoman_service.decoding.constraints import CandidateRules, SearchPlan, TargetRules
from dragoman_service.decoding.degeneration import EndedSegment, SearchEnd, SecondSearches
from dragoman_service.decoding.step_model import EncodedSource, ModelLimits, StepModel, VocabularySpec

_MAX_ALPHA = 10.0  # beyond any use; keeps penalties finite at any length
_MIN_TEMPERATURE = 1e-4  # beyond any use; keeps quotients finite

_LOOP_CHECK_STEPS = 16
"""A guarded search is checked for a loop whenever its length is a multiple of this: a check takes about 10 us."""

_FEW_ROWS = 16
"""A step of so many rows takes hardly longer than one of a single row, but the runtime binds anew when the number of
rows changes: a small batch has all of its rows from its first step on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The outcome of a step."""

    ended: tuple[EndedSegment, ...]
    num_segments: int
    """B of the step, ended segments included."""

    num_rows: int
    """K of the step: rows of each segment, dead ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """The size of a batch."""

    num_segments: int = 0
    longest_source: int = 0
    """In tokens, EOS counted."""

    widest_beam: int = 0
    source_tokens: int = 0
    """Of all segments, EOS counted, without padding."""

    live_rows: int = 0
    """Beams of all segments together."""

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "BatchLoad":
        """Return the load of a batch of these segments."""
        listed = list(segments)
        sources, beams = [len(one.source_ids) for one in listed], [one.search.beam_size for one in listed]
        return cls(
            num_segments=len(listed),
            longest_source=max(sources, default=0),
            widest_beam=max(beams, default=0),
            source_tokens=sum(sources),
            live_rows=sum(beams),
        )

    @property
    def padded_tokens(self) -> int:
        """Source tokens when every source is padded to the longest."""
        return self.num_segments * self.longest_source

    @property
    def rows(self) -> int:
        """Decoder rows when every beam is padded to the widest."""
        return self.num_segments * self.widest_beam

    def plus(self, segment: Segment) -> "BatchLoad":
        """Return the load with one more segment."""
        return BatchLoad(
            num_segments=self.num_segments + 1,
            longest_source=max(self.longest_source, len(segment.source_ids)),
            widest_beam=max(self.widest_beam, segment.search.beam_size),
            source_tokens=self.source_tokens + len(segment.source_ids),
            live_rows=self.live_rows + segment.search.beam_size,
        )


def check_segment(segment: Segment, limits: ModelLimits) -> None:
    """Raise ValueError unless a model can decode a segment; invalid requests have been rejected before."""
    search = segment.search
    _require(1 <= len(segment.source_ids) <= limits.max_source_tokens, "source tokens", len(segment.source_ids))
    _require(search.beam_size >= 1, "beam_size", search.beam_size)
    _require(1 <= search.num_hypotheses <= search.beam_size, "num_hypotheses", search.num_hypotheses)
    _require(1 <= search.max_target_tokens <= limits.max_target_tokens, "max_target_tokens", search.max_target_tokens)
    _require(search.min_target_tokens >= 0, "min_target_tokens", search.min_target_tokens)
    alpha = search.length_penalty
    _require(math.isfinite(alpha) and abs(alpha) <= _MAX_ALPHA, "length_penalty", alpha)
    _check_tokens(search, limits.vocabulary)
    factor, beta = search.repetition_penalty, search.coverage_penalty
    _require(search.no_repeat_ngram_size >= 0, "no_repeat_ngram_size", search.no_repeat_ngram_size)
    _require(math.isfinite(factor) and factor >= 1, "repetition_penalty", factor)
    _require(math.isfinite(beta) and beta >= 0, "coverage_penalty", beta)
    if search.sampling is not None:
        _check_sampling(search.sampling)
        _require(search.beam_size == search.num_hypotheses, "sampling and beam_size", search.beam_size)
        _require(not search.repetition_guard, "sampling and repetition_guard", search.repetition_guard)


def _check_tokens(search: SearchConfig, vocabulary: VocabularySpec) -> None:
    prefix, suppressed = search.target_prefix, search.suppressed_tokens
    _require(len(prefix) < search.max_target_tokens, "target_prefix of tokens", len(prefix))
    _require(_are_words(prefix, vocabulary), "target_prefix", prefix)
    _require(_are_words(suppressed, vocabulary), "suppressed_tokens", sorted(suppressed))


def _are_words(token_ids: Iterable[int], vocabulary: VocabularySpec) -> bool:
    return all(0 <= token < vocabulary.size and token != vocabulary.eos_id for token in token_ids)


def _check_sampling(sampling: SamplingConfig) -> None:
    temperature = sampling.temperature
    _require(math.isfinite(temperature) and temperature >= _MIN_TEMPERATURE, "temperature", temperature)
    _require(sampling.top_k is None or sampling.top_k >= 1, "top_k", sampling.top_k)
    _require(0 < sampling.top_p <= 1, "top_p", sampling.top_p)
    _require(sampling.seed >= 0, "seed", sampling.seed)


def _require(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"segment has {name} {value}, which the model or the search cannot take")


class RunningBatch:
    """Decodes its segments, one step at a time.

    One thread at a time may use it. The result of a segment does not depend on the other segments or on when it joined,
    provided the model's rows do not. After an exception from the model the batch cannot be used any more.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._vocabulary = model.limits.vocabulary
        self._batch = model.new_batch()
        self._searching = self._batch if isinstance(self._batch, SearchingBatch) else None
        self._rules = CandidateRules(self._vocabulary)
        self._state = BeamState.starting([], bos_id=self._vocabulary.bos_id)
        self._second_searches = SecondSearches(eos_id=self._vocabulary.eos_id)
        self._segments: dict[int, Segment] = {}  # by id
        self._ids: list[int] = []
        self._next_id = 0

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._ids)

    @property
    def load(self) -> BatchLoad:
        """Size of the batch."""
        return BatchLoad.of(self._segments.values())

    def start(
        self,
        segments: Sequence[Segment],
        *,
        ids: Sequence[int] | None = None,
        encoded: Sequence[EncodedSource] | None = None,
    ) -> list[int]:
        """Add new segments to the batch, each accepted by `check_segment`; return their ids.

        Args:
            segments: at least one.
            ids: never used in this batch before; None: counted from 0.
            encoded: their sources, as the model encoded them; None: this encodes them.
        """
        if ids is None:
            ids = range(self._next_id, self._next_id + len(segments))
            self._next_id += len(segments)
        self._segments.update(zip(ids, segments, strict=True))
        plans = {segment_id: SearchPlan(search=self._segments[segment_id].search) for segment_id in ids}
        self._join(plans, encoded or self._encode(ids))
        return list(ids)

    def step(self) -> StepReport:
        """Extend every segment of a batch that is not empty by one token; those that end leave.

        If the guard finds a defect in the best hypothesis of a segment, this is encoded and searched once more instead.
        """
        num_rows, may_end = self._take_step()
        num_segments, (ended, again) = self.num_segments, self._settle(may_end=may_end)
        if not ended and not again:
            return StepReport(ended=(), num_segments=num_segments, num_rows=num_rows)
        self._leave([*(segment.segment_id for segment in ended), *again])
        self._forget(segment.segment_id for segment in ended)
        if again:
            self._join(again, self._encode(again))
        return StepReport(ended=tuple(ended), num_segments=num_segments, num_rows=num_rows)

    def drop(self, ids: Collection[int]) -> None:
        """Remove segments without a result."""
        self._leave(ids)
        self._forget(ids)

    def _take_step(self) -> tuple[int, bool]:
        """Extend every segment by one token; return K of the step, and whether a search may be over."""
        state, rules, attend = self._state, self._rules, self._batch.cross_attention
        if self._searching is not None and state.composition.is_plain:
            num_rows = state.log_probs.shape[1]
            ranked = self._searching.search_step(state, rules=rules)
            advance_ranked(state, ranked, rules=rules, attend=attend)
            return num_rows, ranked.may_end or bool(ranked.finished) or state.steps_left <= 0
        num_rows = self._num_rows()
        counts = num_candidates(state, rules=rules, num_rows=num_rows)
        output = self._batch.step(state.tokens[:, :num_rows], state.parents[:, :num_rows], num_candidates=counts)
        advance(state, output, rules=rules, attend=attend)
        return num_rows, True

    def _num_rows(self) -> int:
        """Return K of the next step: the live rows, or all rows of a small batch."""
        widest = self._state.log_probs.shape[1]
        is_small = self.num_segments * widest <= _FEW_ROWS
        return widest if is_small else self._state.num_live_rows

    def _encode(self, ids: Iterable[int]) -> list[EncodedSource]:
        return self._model.encode([self._segments[segment_id].source_ids for segment_id in ids])

    def _join(self, plans: Mapping[int, SearchPlan], encoded: Sequence[EncodedSource]) -> None:
        """Start to search segments, by id, as planned."""
        self._batch.start(encoded)
        joining = BeamState.starting(
            [plan.search for plan in plans.values()],
            bos_id=self._vocabulary.bos_id,
            target_rules=[TargetRules.of(plan, vocabulary_size=self._vocabulary.size) for plan in plans.values()],
            is_masked=np.array(
                [
                    self._rules.find_masked(self._segments[segment_id].source_ids, plan.search.target_prefix)
                    for segment_id, plan in plans.items()
                ]
            ),
        )
        if self._ids:
            self._state.append(joining)
        else:
            self._state = joining
        self._ids += plans

    def _settle(self, *, may_end: bool) -> tuple[list[EndedSegment], dict[int, SearchPlan]]:
        """Return the segments that have their results now, and how to search once more those that need it, by id."""
        state, ended, again = self._state, list[EndedSegment](), dict[int, SearchPlan]()
        is_over = find_ended(state) if may_end else []
        looping = self._find_looping()
        if not is_over and not looping:  # as in most steps
            return ended, again
        for index in sorted({*is_over, *looping}):
            segment_id = self._ids[index]
            end = SearchEnd(
                hypotheses=conclude(state, index, eos_id=self._vocabulary.eos_id),
                num_steps=int(state.lengths[index]),
                looping_ids=() if index in is_over else tuple(looping[index]),
            )
            outcome = self._second_searches.settle(segment_id, self._segments[segment_id], end)
            if isinstance(outcome, SearchPlan):
                again[segment_id] = outcome
            else:
                ended.append(self._with_attention(index, outcome))
        return ended, again

    def _find_looping(self) -> dict[int, list[int]]:
        """Return the best live hypotheses, by index, of guarded segments whose first search can end as it loops."""
        state, looping = self._state, dict[int, list[int]]()
        for index in state.composition.guarded:
            length = int(state.lengths[index])
            if length % _LOOP_CHECK_STEPS == 0 and state.num_live(index) > 0:
                best, _ = state.history.trace(index, row=0, length=length)
                if self._second_searches.is_looping(self._segments[self._ids[index]], best):
                    looping[index] = best
        return looping

    def _with_attention(self, index: int, ended: EndedSegment) -> EndedSegment:
        """Return the result of a segment that is still in the batch, with its attention if that is wanted."""
        if not self._segments[ended.segment_id].wants_attention:
            return ended
        hypotheses = (
            replace(hypothesis, attention=self._batch.cross_attention(index, hypothesis.token_ids))
            for hypothesis in ended.hypotheses
        )
        return replace(ended, hypotheses=tuple(hypotheses))

    def _leave(self, ids: Collection[int]) -> None:
        if not ids:
            return
        keep = indices_without(len(self._ids), [self._ids.index(segment_id) for segment_id in ids])
        self._batch.drop(keep)
        self._state.keep(keep)
        self._ids = [self._ids[index] for index in keep]

    def _forget(self, ids: Iterable[int]) -> None:
        for segment_id in ids:
            del self._segments[segment_id]
            self._second_searches.forget(segment_id)
