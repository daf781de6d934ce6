"""Beam search and sampling: one step over a batch of segments, each with its own options.

Of the candidates of a segment, ranked by log-probability, those among the best K that are EOS finish a hypothesis;
the best K others live on. A search ends when no live hypothesis can still beat the worst finished one it would
return (an exact bound: ending early never changes the answer), or at its longest target. One with `early_stopping` ends
with the K-th hypothesis that finishes, too, as in the decoders of CTranslate2 (under a length penalty) and fairseq.
Greedy search (K = 1) ends with the first EOS: that is what the name promises.

Two kinds of segments are unranked in a step: those whose next token is one of their prefix, and those whose tokens are
sampled.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.beam_state import BeamExpansion, BeamState, FinishedHypothesis
from dragoman_service.decoding.constraints import CandidateRules, Sampler
from dragoman_service.decoding.scoring import coverage_penalty, rank, score
from dragoman_service.decoding.step_model import BoolArray, FloatArray, IntArray, StepBatch, StepOutput

Attend = Callable[[int, Sequence[int]], FloatArray]
"""`StepBatch.cross_attention`"""


@dataclass(slots=True, kw_only=True)
class RankedStep:
    """The outcome of a step that a network ranked by itself, as `advance` would have."""

    rows: BeamExpansion
    """[B, K] the best continuations of each segment; dead ones copy its first row."""

    finished: Sequence[tuple[int, int, float, float]]
    """Hypotheses that took EOS, best first within a segment: segment, row, log-probability of the whole and of EOS."""

    may_end: bool
    """Whether a search may be over though no hypothesis finished in it."""


@runtime_checkable
class SearchingBatch(StepBatch, Protocol):
    """A batch that also ranks: for plain beam search, in which numpy would take as long as the network.

    It may leave out rows whose continuations can no longer be part of an answer.
    """

    def search_step(self, state: BeamState, *, rules: CandidateRules) -> RankedStep:
        """Extend every row of the state by one token, without changing it; `state.composition.is_plain`.

        Args:
            state: of the segments of the batch, in order.
            rules: of the vocabulary.
        """


def advance_ranked(state: BeamState, ranked: RankedStep, *, rules: CandidateRules, attend: Attend) -> None:
    """Take a step that was ranked already, which changes the state."""
    for segment, parent, log_prob, eos_log_prob in ranked.finished:
        _finish(state, segment, parent=parent, log_prob=log_prob, eos_log_prob=eos_log_prob, rules=rules, attend=attend)
    state.extend(ranked.rows)


def advance(state: BeamState, output: StepOutput, *, rules: CandidateRules, attend: Attend) -> None:
    """Take one step, which changes the state: finish what ends with EOS, continue the best of the rest.

    `output` has at least `num_candidates` of each row, and all rows up to `state.num_live_rows`. `attend` is called for
    hypotheses that end, if their segment has a coverage penalty.
    """
    _Step(state, rules.without_masked(output, state.is_masked), rules=rules, attend=attend).take()


class _Step:
    """One step of all segments of a batch."""

    def __init__(self, state: BeamState, output: StepOutput, *, rules: CandidateRules, attend: Attend) -> None:
        self._state = state
        self._output = output
        self._rules = rules
        self._attend = attend

    def take(self) -> None:
        """Change the state."""
        state, rules = self._state, self._rules
        ranking = rank_candidates(state, _ranked_output(state, self._output, rules=rules), rules=rules)
        unranked = [*state.forced, *state.composition.sampled]
        if unranked:
            ranking.log_probs[unranked] = -np.inf
        is_eos = ranking.tokens == rules.eos_id
        if is_eos[:, : state.widest_beam].any():
            self._finish_ranked(ranking, is_eos)
            ranking = _without(ranking, is_eos)
        rows = _best(state, ranking)
        if unranked:
            rows = self._advance_unranked(rows)
        state.extend(rows)

    def _finish_ranked(self, ranking: BeamExpansion, is_eos: BoolArray) -> None:
        """Finish the hypotheses that end: EOS among the best K candidates of a segment."""
        within_beam = np.arange(is_eos.shape[1]) < self._state.beam_sizes[:, None]
        segments, ranks = (is_eos & within_beam & (ranking.log_probs > -np.inf)).nonzero()
        for segment, column in zip(segments.tolist(), ranks.tolist(), strict=True):
            self._finish(
                segment,
                parent=int(ranking.parents[segment, column]),
                log_prob=float(ranking.log_probs[segment, column]),
                eos_log_prob=float(ranking.steps[segment, column]),
            )

    def _finish(self, segment: int, *, parent: int, log_prob: float, eos_log_prob: float) -> None:
        _finish(
            self._state,
            segment,
            parent=parent,
            log_prob=log_prob,
            eos_log_prob=eos_log_prob,
            rules=self._rules,
            attend=self._attend,
        )

    def _advance_unranked(self, rows: BeamExpansion) -> BeamExpansion:
        """Return the rows after a step with those of the unranked segments in place."""
        forced = self._state.forced
        for segment in forced:
            self._force_token(rows, segment)
        for segment, sampler in enumerate(self._state.samplers):
            if sampler is not None and segment not in forced:
                rows = rows.widened(self._state.widest_beam)
                self._sample_tokens(rows, segment, sampler)
        return rows

    def _force_token(self, rows: BeamExpansion, segment: int) -> None:
        """Append the next token of a prefix: nothing is chosen, so nothing is added to the log-probability."""
        state = self._state
        rows.put(
            segment,
            log_probs=np.zeros(1),
            tokens=np.array([state.searches[segment].target_prefix[state.lengths[segment]]]),
            parents=np.zeros(1, np.int64),
            steps=np.zeros(1, np.float32),
        )

    def _sample_tokens(self, rows: BeamExpansion, segment: int, sampler: Sampler) -> None:
        """Append a sampled token to every sample of a segment; those whose token is EOS finish."""
        log_probs, token_ids = self._allowed_candidates(segment)
        parents = self._parents_of_samples(segment, log_probs)
        choices, token_ids = log_probs[parents], token_ids[parents]
        columns, indices = sampler.draw(choices), np.arange(len(parents))
        tokens, steps = token_ids[indices, columns], choices[indices, columns]
        drawn = self._state.log_probs[segment, parents] + steps
        is_eos = tokens == self._rules.eos_id
        for index in is_eos.nonzero()[0].tolist():
            self._finish(
                segment, parent=int(parents[index]), log_prob=float(drawn[index]), eos_log_prob=float(steps[index])
            )
        others = ~is_eos
        rows.put(segment, log_probs=drawn[others], tokens=tokens[others], parents=parents[others], steps=steps[others])

    def _allowed_candidates(self, segment: int) -> tuple[FloatArray, IntArray]:
        """Return log-probabilities, descending, and tokens [N, C] that the N live rows of a segment may sample.

        C depends on the segment alone; tokens not allowed have -inf.
        """
        state, rules = self._state, self._rules
        rows, width = slice(state.num_live(segment)), _num_own_candidates(state, segment, rules=rules)
        token_ids = self._output.token_ids[segment, rows, :width]
        forbids_eos = state.lengths[segment] < state.min_tokens[segment]
        allowed = rules.apply(
            StepOutput(log_probs=self._output.log_probs[None, segment, rows, :width], token_ids=token_ids[None]),
            forbids_eos=np.array([forbids_eos]),
        )
        return _lowered(state, segment, np.fmax(allowed[0], np.float32(-np.inf)), token_ids)

    def _parents_of_samples(self, segment: int, log_probs: FloatArray) -> IntArray:
        """Return the row that each sample continues; all begin in the same one.

        A sample without a possible token ends without a hypothesis.
        """
        state = self._state
        if state.lengths[segment] == state.prefix_lengths[segment]:
            log_probs = log_probs[[0] * state.searches[segment].num_hypotheses]
            parents = np.zeros(len(log_probs), np.int64)
        else:
            parents = np.arange(len(log_probs))
        return parents[np.isfinite(log_probs[:, 0])]


def _finish(
    state: BeamState,
    segment: int,
    *,
    parent: int,
    log_prob: float,
    eos_log_prob: float,
    rules: CandidateRules,
    attend: Attend,
) -> None:
    """Score the hypothesis of row `parent` with EOS appended, which `log_prob` includes; keep it if it is good."""
    state.num_finished[segment] += 1
    search, length = state.searches[segment], int(state.lengths[segment]) + 1
    final_score = score(log_prob, length=length, alpha=search.length_penalty)
    if search.coverage_penalty > 0:
        if final_score <= state.scores_to_beat[segment]:
            return  # the penalty only lowers it further: no need to compute the attention
        tokens, _ = state.history.trace(segment, row=parent, length=length - 1)
        attention = attend(segment, [*tokens, rules.eos_id])
        final_score += coverage_penalty(attention, beta=search.coverage_penalty)
    hypothesis = FinishedHypothesis(
        parent=parent, length=length, eos_log_prob=eos_log_prob, log_prob=log_prob, score=final_score
    )
    state.keep_finished(segment, hypothesis)


def num_candidates(state: BeamState, *, rules: CandidateRules, num_rows: int) -> int | IntArray:
    """C of the next step: as many as are needed to search as if over the whole vocabulary.

    Where segments have rules of their own or are sampled, those of each row [B, K]: one that needs the whole
    vocabulary does not slow down the others. Each row may have all placeholders among its best candidates.
    """
    most = rules.num_candidates(state.widest_beam)
    num_placeholders: int = state.is_masked.shape[1]
    if not state.composition.has_rules and not state.composition.sampled:
        return min(most + num_placeholders, rules.vocabulary_size)
    of_rows = np.full((len(state.searches), num_rows), most, np.int64)
    for segment, (own, sampler) in enumerate(zip(state.target_rules, state.samplers, strict=True)):
        if own is not None or sampler is not None:
            live = slice(state.num_live(segment))
            of_rows[segment, live] = max(most, _num_own_candidates(state, segment, rules=rules))
    of_rows += num_placeholders
    return of_rows.clip(max=rules.vocabulary_size)


def _num_own_candidates(state: BeamState, segment: int, *, rules: CandidateRules) -> int:
    """Return how many candidates that are not masked a segment needs, without regard to the others."""
    own, sampler = state.target_rules[segment], state.samplers[segment]
    if state.lengths[segment] < state.prefix_lengths[segment]:
        return 1
    num_taken = sampler.num_choices(rules.vocabulary_size) if sampler else state.searches[segment].beam_size
    return rules.num_candidates(num_taken + (own.num_lowered if own else 0))


def _ranked_output(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> StepOutput:
    """Return as many candidates of each row as the widest beam needs, after applying the rules of each segment.

    The model may give more because one segment needs them: the others rank no more than without it.
    """
    width = rules.num_candidates(state.widest_beam)
    if output.log_probs.shape[2] == width and not state.composition.has_rules:
        return output
    log_probs, token_ids = output.log_probs[:, :, :width], output.token_ids[:, :, :width]
    ruled = [segment for segment, own in enumerate(state.target_rules) if own and not state.samplers[segment]]
    if ruled:
        log_probs, token_ids = log_probs.copy(), token_ids.copy()
    for segment in ruled:
        num_rows = min(state.num_live(segment), output.log_probs.shape[1])
        own = slice(num_rows), slice(max(width, _num_own_candidates(state, segment, rules=rules)))
        lowered = _lowered(state, segment, output.log_probs[segment][own], output.token_ids[segment][own])
        log_probs[segment, :num_rows], token_ids[segment, :num_rows] = (array[:, :width] for array in lowered)
    return StepOutput(log_probs=log_probs, token_ids=token_ids)


def _lowered(state: BeamState, segment: int, log_probs: FloatArray, token_ids: IntArray) -> tuple[FloatArray, IntArray]:
    """Return candidates [N, C] of a segment's live rows under its own rules, sorted again; ties keep their order."""
    own = state.target_rules[segment]
    lowered = own.apply(log_probs, token_ids) if own else log_probs
    order = (-lowered).argsort(axis=1, kind="stable")
    return np.take_along_axis(lowered, order, axis=1), np.take_along_axis(token_ids, order, axis=1)


def rank_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> BeamExpansion:
    """Return the best candidates of each segment, best first; ties go to the better row, then to the model's order.

    Each row has EOS once, so as many columns as the widest beam plus the rows hold enough other candidates.
    """
    num_segments, num_rows, num_columns = output.log_probs.shape
    forbids_eos = state.lengths < state.min_tokens if state.composition.has_minimums else None
    allowed = rules.apply(output, forbids_eos=forbids_eos)
    # fmax takes -inf over NaN: a broken row dies without harm to the others.
    log_probs = np.fmax(state.log_probs[:, :num_rows, None] + allowed, -np.inf)  # [B, K, C] float64
    log_probs = log_probs.reshape(num_segments, -1)  # [B, K, C] -> [B, K * C]
    # The stable sort makes the order of ties independent of how far other segments widen K and C.
    order = (-log_probs).argsort(axis=1, kind="stable")[:, : state.widest_beam + num_rows]
    flat = order + _offsets(*log_probs.shape)
    return BeamExpansion(
        log_probs=log_probs.take(flat),
        tokens=output.token_ids.take(flat),
        parents=order // num_columns,
        steps=output.log_probs.take(flat),
    )


@functools.lru_cache(maxsize=64)
def _offsets(num_segments: int, num_columns: int) -> IntArray:
    """Return [B, 1], the index of the first element of each row in a flattened array [B, columns]; do not change it."""
    return np.arange(0, num_segments * num_columns, num_columns)[:, None]


def _without(ranking: BeamExpansion, is_eos: BoolArray) -> BeamExpansion:
    """Return the candidates other than EOS in their order, and behind them those that are EOS, as -inf."""
    order = is_eos.argsort(axis=1, kind="stable")  # others first, each part in order
    flat = order + _offsets(*is_eos.shape)
    log_probs = ranking.log_probs.take(flat)
    log_probs[is_eos.take(flat)] = -np.inf
    tokens, parents, steps = ranking.tokens.take(flat), ranking.parents.take(flat), ranking.steps.take(flat)
    return BeamExpansion(log_probs=log_probs, tokens=tokens, parents=parents, steps=steps)


def _best(state: BeamState, ranking: BeamExpansion) -> BeamExpansion:
    """Return the best K candidates, none of which is EOS unless it is -inf."""
    width = state.widest_beam
    log_probs, tokens, parents = ranking.log_probs[:, :width], ranking.tokens[:, :width], ranking.parents[:, :width]
    is_beyond_beam = state.composition.is_beyond_beam
    if is_beyond_beam is not None:
        log_probs[is_beyond_beam[:, : log_probs.shape[1]]] = -np.inf
    if log_probs[:, -1].min(initial=0.0) == -np.inf:
        # Dead rows copy the best row: with hypotheses of their own they would keep cache slots from being reused, and
        # the slots of tokens decide the order in which attention adds them up.
        is_dead = log_probs == -np.inf
        tokens, parents = np.where(is_dead, tokens[:, :1], tokens), np.where(is_dead, parents[:, :1], parents)
    return BeamExpansion(log_probs=log_probs, tokens=tokens, parents=parents, steps=ranking.steps[:, :width])


def find_ended(state: BeamState) -> list[int]:
    """Return the segments whose search is over, those without live rows included."""
    is_over = state.log_probs[:, 0] / state.bound_penalties <= state.scores_to_beat
    if state.composition.has_early_stops:
        is_over |= state.early_stopping & (state.num_finished >= state.beam_sizes)
    if state.steps_left <= 0:
        is_over |= state.lengths >= state.max_tokens
    ended: list[int] = is_over.nonzero()[0].tolist()
    return ended


def conclude(state: BeamState, segment: int, *, eos_id: int) -> tuple[Hypothesis, ...]:
    """Return the answer of a search that ended, best first.

    Live hypotheses, cut off at the longest target, only fill places for which there is no finished one, and come
    after those whatever their score. Empty only if the model gave no possible continuation (all NaN or -inf).
    """
    search = state.searches[segment]
    finished = [_finished(state, segment, hypothesis, eos_id=eos_id) for hypothesis in state.finished[segment]]
    num_missing = search.num_hypotheses - len(finished)
    live_rows = np.isfinite(state.log_probs[segment]).nonzero()[0].tolist()
    unfinished = [_unfinished(state, segment, row, search) for row in live_rows[:num_missing]]
    return tuple(rank(finished + unfinished))


def _finished(state: BeamState, segment: int, hypothesis: FinishedHypothesis, *, eos_id: int) -> Hypothesis:
    tokens, log_probs = state.history.trace(segment, row=hypothesis.parent, length=hypothesis.length - 1)
    return Hypothesis(
        token_ids=(*tokens, eos_id),
        token_log_probs=(*log_probs, hypothesis.eos_log_prob),
        log_prob=hypothesis.log_prob,
        score=hypothesis.score,
        is_finished=True,
    )


def _unfinished(state: BeamState, segment: int, row: int, search: SearchConfig) -> Hypothesis:
    length = int(state.lengths[segment])
    tokens, log_probs = state.history.trace(segment, row=row, length=length)
    log_prob = float(state.log_probs[segment, row])
    return Hypothesis(
        token_ids=tuple(tokens),
        token_log_probs=tuple(log_probs),
        log_prob=log_prob,
        score=score(log_prob, length=length, alpha=search.length_penalty),
        is_finished=False,
    )
