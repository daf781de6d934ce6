"""A running batch: segments join between steps, step together, and leave with their hypotheses."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.datatypes import GuardReport, Hypothesis, SamplingConfig, SearchConfig, Segment
from service.decoding.beam_search import advance, conclude, find_ended, num_candidates
from service.decoding.beam_state import BeamState, indices_without
from service.decoding.constraints import CandidateRules, SearchPlan, TargetRules
from service.decoding.guard import Answer, SearchEnd, SecondSearches
from service.decoding.step_model import ModelLimits, StepModel, VocabularySpec

_MAX_ALPHA = 10.0  # beyond any use; keeps penalties finite at any length
_MIN_TEMPERATURE = 1e-4  # beyond any use; keeps quotients finite

_LOOP_CHECK_STEPS = 16
"""A guarded search is checked for a loop whenever its length is a multiple of this: looking costs about 10 us."""

_FEW_ROWS = 16
"""So many rows take a network hardly longer than one, but another number of rows in the next step would make the
runtime bind anew: a small batch has all of its rows from its first step on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSegment:
    """A segment that left the batch by itself."""

    handle: int
    """What `Engine.start` returned for it."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first; empty only if the model gave no possible continuation (a broken network)."""

    num_steps: int
    """Decoder steps it took part in, those of a second search included."""

    guard: GuardReport | None = None
    """What the guard did; None if it was off or found nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did; the caller records it."""

    ended: tuple[EndedSegment, ...]
    num_segments: int
    """B of the step, those that ended counted."""

    num_rows: int
    """K of the step: rows of each segment, dead ones counted."""


def check_segment(segment: Segment, limits: ModelLimits) -> None:
    """Check what the engine relies on; the translator has turned bad input away before.

    Raises:
        ValueError: if the segment has no place in a batch of this model.
    """
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


class Engine:
    """Decodes whatever segments are in it, one step at a time.

    One thread at a time may use it. A result does not depend on the neighbours of a segment or on when it joined,
    provided the model's rows do not. After an exception from the model the engine is of no further use.
    """

    def __init__(self, model: StepModel) -> None:
        self._vocabulary = model.limits.vocabulary
        self._batch = model.new_batch()
        self._rules = CandidateRules(self._vocabulary)
        self._state = BeamState.starting([], bos_id=self._vocabulary.bos_id)
        self._second_searches = SecondSearches(eos_id=self._vocabulary.eos_id)
        self._segments: dict[int, Segment] = {}  # by handle
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
        handles = list(range(self._next_handle, self._next_handle + len(segments)))
        self._next_handle += len(segments)
        self._segments.update(zip(handles, segments, strict=True))
        self._join({handle: SearchPlan(search=self._segments[handle].search) for handle in handles})
        return handles

    def step(self) -> StepReport:
        """Extend every segment of a batch that is not empty by one token; those that end leave.

        One with whose best hypothesis the guard finds fault does not leave: it is encoded and searched once more.
        """
        state, num_rows = self._state, self._num_rows()
        output = self._batch.step(
            state.tokens[:, :num_rows],
            state.parents[:, :num_rows],
            num_candidates=num_candidates(state, rules=self._rules),
        )
        advance(state, output, rules=self._rules, attend=self._batch.cross_attention)
        num_segments, (ended, again) = self.num_segments, self._settle()
        self._leave([*(segment.handle for segment in ended), *again])
        self._forget(segment.handle for segment in ended)
        if again:
            self._join(again)
        return StepReport(ended=tuple(ended), num_segments=num_segments, num_rows=num_rows)

    def drop(self, handles: Collection[int]) -> None:
        """Forget segments that nobody waits for any more."""
        self._leave(handles)
        self._forget(handles)

    def _num_rows(self) -> int:
        """Return K of the next step: the rows that live, or all at once where that costs the model no more time."""
        widest = self._state.log_probs.shape[1]
        is_small = self.num_segments * widest <= _FEW_ROWS
        return widest if is_small else self._state.num_live_rows

    def _join(self, plans: Mapping[int, SearchPlan]) -> None:
        """Encode segments, named by their handles, and begin to search them as planned."""
        self._batch.start([self._segments[handle].source_ids for handle in plans])
        newcomers = BeamState.starting(
            [plan.search for plan in plans.values()],
            bos_id=self._vocabulary.bos_id,
            target_rules=[TargetRules.of(plan, vocabulary_size=self._vocabulary.size) for plan in plans.values()],
        )
        if self._handles:
            self._state.append(newcomers)
        else:
            self._state = newcomers
        self._handles += plans

    def _settle(self) -> tuple[list[EndedSegment], dict[int, SearchPlan]]:
        """Return the segments that are answered now, and how to search those once more that are not."""
        ended, again = [], dict[int, SearchPlan]()
        looping = dict.fromkeys(self._find_looping(), True)
        for index, is_looping in sorted({**looping, **dict.fromkeys(find_ended(self._state), False)}.items()):
            handle = self._handles[index]
            end = self._search_end(index, looping_ids=self._best_live(index) if is_looping else [])
            outcome = self._second_searches.settle(handle, self._segments[handle], end)
            if isinstance(outcome, SearchPlan):
                again[handle] = outcome
            else:
                ended.append(self._ended(index, outcome))
        return ended, again

    def _find_looping(self) -> list[int]:
        """Return the guarded segments whose first search need not go on, as its best hypothesis runs in a loop."""
        state = self._state
        return [
            index
            for index in state.composition.guarded
            if state.lengths[index] % _LOOP_CHECK_STEPS == 0 and self._is_looping(index)
        ]

    def _is_looping(self, index: int) -> bool:
        segment = self._segments[self._handles[index]]
        return self._state.num_live(index) > 0 and self._second_searches.is_looping(segment, self._best_live(index))

    def _best_live(self, index: int) -> list[int]:
        return self._state.history.trace(index, row=0, length=int(self._state.lengths[index]))[0]

    def _search_end(self, index: int, *, looping_ids: Sequence[int]) -> SearchEnd:
        return SearchEnd(
            hypotheses=conclude(self._state, index, eos_id=self._vocabulary.eos_id),
            num_steps=int(self._state.lengths[index]),
            looping_ids=tuple(looping_ids),
        )

    def _ended(self, index: int, answer: Answer) -> EndedSegment:
        """Return the answer to a segment that is still in the batch, with the attention if it is wanted."""
        handle, hypotheses = self._handles[index], answer.hypotheses
        if self._segments[handle].wants_attention:
            hypotheses = tuple(
                replace(hypothesis, attention=self._batch.cross_attention(index, hypothesis.token_ids))
                for hypothesis in hypotheses
            )
        return EndedSegment(handle=handle, hypotheses=hypotheses, num_steps=answer.num_steps, guard=answer.guard)

    def _leave(self, handles: Collection[int]) -> None:
        if not handles:
            return
        keep = indices_without(len(self._handles), [self._handles.index(handle) for handle in handles])
        self._batch.drop(keep)
        self._state.keep(keep)
        self._handles = [self._handles[index] for index in keep]

    def _forget(self, handles: Iterable[int]) -> None:
        for handle in handles:
            del self._segments[handle]
            self._second_searches.forget(handle)
