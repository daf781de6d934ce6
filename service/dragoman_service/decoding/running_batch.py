"""A running batch: segments join between steps, are stepped together, and leave with their hypotheses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.beam_search import (
    Interrupt,
    SearchingBatch,
    advance,
    advance_ranked,
    conclude,
    find_ended,
    num_candidates,
)
from dragoman_service.decoding.beam_state import BeamState, indices_without
from dragoman_service.decoding.constraints import CandidateRules, TargetRules
from dragoman_service.decoding.degeneration import LOOP_CHECK_STEPS, EndedSegment, Redecoder
from dragoman_service.decoding.step_model import EncodedSource, ModelLimits, StepModel, VocabularySpec

_SMALL_BATCH_ROWS = 16
"""A step of this many rows takes hardly longer than a step of one row, but the runtime binds its inputs again when the
number of rows changes. So a small batch has all of its rows from its first step on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Outcome of one or more steps of the same segments."""

    ended: tuple[EndedSegment, ...]
    num_segments: int  # B of each step, including segments that ended
    num_rows: int  # K of the last step, including dead rows
    earlier_steps_s: Sequence[float] = ()  # durations of the steps before the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """Size of a batch."""

    num_segments: int = 0
    longest_source: int = 0  # tokens, including EOS
    widest_beam: int = 0
    source_tokens: int = 0  # of all segments, including EOS, without padding
    live_rows: int = 0  # sum of all beams

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "BatchLoad":
        """Return the load of a batch of these segments."""
        sizes = [(len(segment.source_ids), segment.search.beam_size) for segment in segments]
        sources, beams = [source for source, _ in sizes], [beam for _, beam in sizes]
        return cls(
            num_segments=len(sizes),
            longest_source=max(sources, default=0),
            widest_beam=max(beams, default=0),
            source_tokens=sum(sources),
            live_rows=sum(beams),
        )

    @property
    def padded_tokens(self) -> int:
        """Source tokens if all sources are padded to the longest."""
        return self.num_segments * self.longest_source

    @property
    def rows(self) -> int:
        """Decoder rows if all beams are padded to the widest."""
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
    """Raise ValueError if a segment exceeds the limits of a model; the options of the search are valid.

    The check of the request cannot know the tokens of a segment: its source, its target prefix and its maximum length.
    """
    search, num_source_tokens, vocabulary = segment.search, len(segment.source_ids), limits.vocabulary
    prefix, max_target_tokens = search.target_prefix, search.max_target_tokens
    checks: tuple[tuple[str, object, bool], ...] = (
        ("source tokens", num_source_tokens, 1 <= num_source_tokens <= limits.max_source_tokens),
        ("max_target_tokens", max_target_tokens, 1 <= max_target_tokens <= limits.max_target_tokens),
        ("length of target_prefix", len(prefix), len(prefix) < max_target_tokens),
        ("target_prefix", prefix, _are_text_tokens(prefix, vocabulary)),
        ("suppressed_tokens", search.suppressed_tokens, _are_text_tokens(search.suppressed_tokens, vocabulary)),
    )
    for name, value, is_valid in checks:
        if not is_valid:
            raise ValueError(f"invalid segment: {name} is {value}, which the model does not support")


def _are_text_tokens(token_ids: Iterable[int], vocabulary: VocabularySpec) -> bool:
    return all(0 <= token < vocabulary.size and token != vocabulary.eos_id for token in token_ids)


class RunningBatch:
    """Decodes segments together, one step at a time; one thread at a time may use it.

    The result of a segment does not depend on the other segments or on when it joined, provided that the rows of the
    model do not. After an exception from the model the batch must not be used again.
    """

    def __init__(self, model: StepModel, *, interrupt: Interrupt | None = None) -> None:
        """Start without segments; setting `interrupt` to 1 ends a `step` of several steps."""
        self._model, self._interrupt = model, interrupt
        self._vocabulary = model.limits.vocabulary
        self._batch = model.new_batch()
        self._searching = self._batch if isinstance(self._batch, SearchingBatch) else None
        self._rules = CandidateRules(self._vocabulary)
        self._state = BeamState([], bos_id=self._vocabulary.bos_id)
        self._redecoder = Redecoder(eos_id=self._vocabulary.eos_id)
        self._segments: dict[int, Segment] = {}  # by id
        self._ids: list[int] = []
        self._next_id = 0
        self._load: BatchLoad | None = None  # None: not known since segments have joined or left

    @property
    def num_segments(self) -> int:
        """Number of segments in the batch."""
        return len(self._ids)

    @property
    def load(self) -> BatchLoad:
        """Size of the batch."""
        if self._load is None:
            self._load = BatchLoad.of(self._segments.values())
        return self._load

    def start(
        self,
        segments: Sequence[Segment],
        *,
        ids: Sequence[int] | None = None,
        encoded: Sequence[EncodedSource] | None = None,
    ) -> list[int]:
        """Add new segments, each accepted by `check_segment`; return their ids.

        Args:
            segments: at least one.
            ids: unique ids of the segments; None: counted from 0.
            encoded: encoder outputs of the segments; None: encode them now.
        """
        if ids is None:
            ids = range(self._next_id, self._next_id + len(segments))
            self._next_id += len(segments)
        self._segments.update(zip(ids, segments, strict=True))
        self._load = None
        searches = {segment_id: self._segments[segment_id].search for segment_id in ids}
        self._join(searches, encoded or self._encode(ids))
        return list(ids)

    def step(self, *, max_seconds: float = 0.0) -> StepReport:
        """Extend each segment of a non-empty batch by one token, and remove the segments that end.

        A model that searches by itself takes further steps until a segment ends, `max_seconds` have passed, or the
        interrupt is set.

        A segment whose best hypothesis is degenerate is encoded and decoded again instead, if `repetition_guard` is on.
        """
        num_rows, may_end, earlier_steps_s = self._take_step(max_seconds)
        num_segments, (ended, again) = self.num_segments, self._end_searches(may_end=may_end)
        if not ended and not again:
            return StepReport(ended=(), num_segments=num_segments, num_rows=num_rows, earlier_steps_s=earlier_steps_s)
        self._leave([*(segment.segment_id for segment in ended), *again])
        self._forget(segment.segment_id for segment in ended)
        if again:
            self._join(again, self._encode(again))
        return StepReport(
            ended=tuple(ended), num_segments=num_segments, num_rows=num_rows, earlier_steps_s=earlier_steps_s
        )

    def drop(self, ids: Collection[int]) -> None:
        """Remove segments without a result."""
        self._leave(ids)
        self._forget(ids)

    def _take_step(self, max_seconds: float) -> tuple[int, bool, Sequence[float]]:
        """Take one or more steps.

        Returns:
            K of the last step, whether a search may be over, and the durations of the earlier steps in seconds.
        """
        state, rules, attention_of = self._state, self._rules, self._batch.cross_attention
        num_rows = state.log_probs.shape[1]
        if self._searching is not None and state.composition.is_plain:
            ranked = self._searching.search(state, rules=rules, max_seconds=max_seconds, interrupt=self._interrupt)
            advance_ranked(state, ranked, rules=rules, attention_of=attention_of)
            if len(ranked.rows) > 1:
                num_rows = state.widest_beam
            may_end = ranked.may_end or bool(ranked.finished)  # coverage penalties are only now part of the scores
            return num_rows, may_end, ranked.steps_s[:-1]
        if self.num_segments * num_rows > _SMALL_BATCH_ROWS:
            num_rows = state.num_live_rows
        counts = num_candidates(state, rules=rules, num_rows=num_rows)
        output = self._batch.step(state.tokens[:, :num_rows], state.parents[:, :num_rows], num_candidates=counts)
        advance(state, output, rules=rules, attention_of=attention_of)
        return num_rows, True, ()

    def _encode(self, ids: Iterable[int]) -> list[EncodedSource]:
        return self._model.encode([self._segments[segment_id].source_ids for segment_id in ids])

    def _join(self, searches: Mapping[int, SearchConfig], encoded: Sequence[EncodedSource]) -> None:
        self._batch.start(encoded)
        is_masked = [
            self._rules.find_masked(self._segments[segment_id].source_ids, search.target_prefix)
            for segment_id, search in searches.items()
        ]
        joining = BeamState(
            list(searches.values()),
            bos_id=self._vocabulary.bos_id,
            target_rules=[self._target_rules(*each) for each in searches.items()],
            is_masked=np.array(is_masked),
        )
        if self._ids:
            self._state.append(joining)
        else:
            self._state = joining
        self._ids += searches

    def _target_rules(self, segment_id: int, search: SearchConfig) -> TargetRules | None:
        has_own = search.suppressed_tokens or search.no_repeat_ngram_size or search.repetition_penalty != 1
        if not (has_own or search.avoids_source):
            return None
        source_ids = self._segments[segment_id].source_ids
        return TargetRules(search, vocabulary_size=self._vocabulary.size, source_ids=source_ids)

    def _end_searches(self, *, may_end: bool) -> tuple[list[EndedSegment], dict[int, SearchConfig]]:
        """Return the segments that have results now, and the searches of the segments to decode again, by id."""
        state, ended, again = self._state, list[EndedSegment](), dict[int, SearchConfig]()
        is_over = find_ended(state) if may_end else []
        looping = self._find_looping()
        if not is_over and not looping:  # as in most steps
            return ended, again
        for index in sorted({*is_over, *looping}):
            segment_id = self._ids[index]
            ended_search = EndedSegment(
                segment_id=segment_id,
                hypotheses=conclude(state, index, eos_id=self._vocabulary.eos_id),
                num_steps=int(state.lengths[index]),
            )
            looping_ids = () if index in is_over else tuple(looping[index])
            result = self._redecoder.handle(self._segments[segment_id], ended_search, looping_ids=looping_ids)
            if isinstance(result, SearchConfig):
                again[segment_id] = result
            else:
                ended.append(self._with_attention(index, result))
        return ended, again

    def _find_looping(self) -> dict[int, list[int]]:
        """Return the best live hypotheses, by index, of guarded segments whose first search loops."""
        state, looping = self._state, dict[int, list[int]]()
        for index in state.composition.guarded:
            length = int(state.lengths[index])
            if length % LOOP_CHECK_STEPS == 0 and state.num_live(index) > 0:
                best, _ = state.history.trace(index, row=0, length=length)
                if self._redecoder.is_looping(self._segments[self._ids[index]], best):
                    looping[index] = best
        return looping

    def _with_attention(self, index: int, ended: EndedSegment) -> EndedSegment:
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
            self._load = None
            self._redecoder.forget(segment_id)
