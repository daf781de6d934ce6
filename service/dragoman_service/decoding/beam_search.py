"""Beam search and sampling: one step over a batch of segments, each with its own options.

The candidates of a segment are ranked by log-probability. EOS among the best K candidates finishes a hypothesis; the
best K other candidates stay live. A search ends when no live hypothesis can beat the worst finished hypothesis that it
would return (an exact bound: it never changes the result), or at its longest target. With `early_stopping`, it also
ends with the K-th finished hypothesis, as in CTranslate2 (under a length penalty) and fairseq. Greedy search (K = 1)
ends with the first EOS.

Two kinds of segments are not ranked in a step: the next token is a token of their prefix, or it is sampled.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dragoman_service.datatypes import Hypothesis
from dragoman_service.decoding.beam_state import (
    BeamExpansion,
    BeamState,
    FinishedHypothesis,
    coverage_penalty,
    rank,
    score,
)
from dragoman_service.decoding.constraints import CandidateRules, Sampler
from dragoman_service.decoding.step_model import BoolArray, FloatArray, IntArray, StepBatch, StepOutput

AttentionOf = Callable[[int, Sequence[int]], FloatArray]  # `StepBatch.cross_attention`
Interrupt = ctypes.c_int32  # a number that any thread can set to 1 to end a run of steps


@dataclass(slots=True, kw_only=True)
class RankedRun:
    """Outcome of one or more steps that the model has ranked, each equal to that of `advance`."""

    rows: Sequence[BeamExpansion]  # of each step: [B, K] the best continuations; dead rows copy the first row
    # Hypotheses that ended with EOS, in the order of the steps and best first within a segment: step, segment, row,
    # log-probability, that of EOS alone.
    finished: Sequence[tuple[int, int, int, float, float]]
    steps_s: Sequence[float]  # durations of the steps
    may_end: bool  # whether the search of a segment is over


@runtime_checkable
class SearchingBatch(StepBatch, Protocol):
    """A batch that also ranks candidates in plain beam search, where NumPy takes as long as the model.

    It may omit rows whose continuations cannot be part of a result.
    """

    def search(
        self, state: BeamState, *, rules: CandidateRules, max_seconds: float, interrupt: Interrupt | None
    ) -> RankedRun:
        """Take one or more steps without changing the state, which is that of plain searches (`Composition.is_plain`).

        The run ends after a step in which a search is over, a best hypothesis may loop at a length that is checked, or
        a hypothesis with a coverage penalty finishes; with the first step after `max_seconds`; and if the interrupt
        is set.
        """


def advance_ranked(state: BeamState, ranked: RankedRun, *, rules: CandidateRules, attention_of: AttentionOf) -> None:
    """Update the state by steps that the model has ranked."""
    step, finished, num_scored = _Step(state, rules=rules, attention_of=attention_of), ranked.finished, 0
    for index, rows in enumerate(ranked.rows):
        while num_scored < len(finished) and finished[num_scored][0] == index:
            step.finish(*finished[num_scored][1:])
            num_scored += 1
        state.extend(rows)


def advance(state: BeamState, output: StepOutput, *, rules: CandidateRules, attention_of: AttentionOf) -> None:
    """Update the state by one step: finish hypotheses that end with EOS, and continue the best other candidates.

    `output` has at least `num_candidates` of each row, and all rows up to `state.num_live_rows`. `attention_of` is
    called for finished hypotheses of segments with a coverage penalty.
    """
    _Step(state, rules=rules, attention_of=attention_of).advance(rules.without_masked(output, state.is_masked))


class _Step:
    def __init__(self, state: BeamState, *, rules: CandidateRules, attention_of: AttentionOf) -> None:
        self._state, self._rules, self._attention_of = state, rules, attention_of

    def advance(self, output: StepOutput) -> None:
        state, rules = self._state, self._rules
        ranking = rank_candidates(state, _ranked_output(state, output, rules=rules), rules=rules)
        unranked = [*state.forced, *state.composition.sampled]
        if unranked:
            ranking.log_probs[unranked] = -np.inf
        is_eos = ranking.tokens == rules.eos_id
        if is_eos[:, : state.widest_beam].any():
            self._finish_ranked(ranking, is_eos)
            ranking = _without(ranking, is_eos)
        rows = _best(state, ranking)
        if unranked:
            rows = self._advance_unranked(rows, output)
        state.extend(rows)

    def finish(self, segment: int, parent: int, log_prob: float, eos_log_prob: float) -> None:
        """Score the hypothesis of row `parent` with EOS, which `log_prob` includes; keep it if it is among the best."""
        state = self._state
        state.num_finished[segment] += 1
        search, length = state.searches[segment], int(state.lengths[segment]) + 1
        final_score = score(log_prob, length=length, alpha=search.length_penalty)
        if search.coverage_penalty > 0:
            if final_score <= state.scores_to_beat[segment]:
                return  # the penalty only lowers the score: the attention is not needed
            tokens, _ = state.history.trace(segment, row=parent, length=length - 1)
            attention = self._attention_of(segment, [*tokens, self._rules.eos_id])
            final_score += coverage_penalty(attention, beta=search.coverage_penalty)
        hypothesis = FinishedHypothesis(
            parent=parent, length=length, eos_log_prob=eos_log_prob, log_prob=log_prob, score=final_score
        )
        state.keep_finished(segment, hypothesis)

    def _finish_ranked(self, ranking: BeamExpansion, is_eos: BoolArray) -> None:
        """Finish hypotheses with EOS among the best K candidates of a segment."""
        within_beam = np.arange(is_eos.shape[1]) < self._state.beam_sizes[:, None]
        segments, ranks = (is_eos & within_beam & (ranking.log_probs > -np.inf)).nonzero()
        for segment, column in zip(segments.tolist(), ranks.tolist(), strict=True):
            at = segment, column
            self.finish(segment, ranking.parents.item(at), ranking.log_probs.item(at), ranking.steps.item(at))

    def _advance_unranked(self, rows: BeamExpansion, output: StepOutput) -> BeamExpansion:
        state, forced = self._state, self._state.forced
        for segment in forced:
            token = state.searches[segment].target_prefix[state.lengths[segment]]
            zero, parent = np.zeros(1), np.zeros(1, np.int64)  # a token of a prefix adds 0 to the log-probability
            rows.put(segment, log_probs=zero, tokens=np.array([token]), parents=parent, steps=zero.astype(np.float32))
        for segment, sampler in enumerate(state.samplers):
            if sampler is not None and segment not in forced:
                rows = rows.widened(state.widest_beam)
                self._sample_tokens(rows, output, segment, sampler)
        return rows

    def _sample_tokens(self, rows: BeamExpansion, output: StepOutput, segment: int, sampler: Sampler) -> None:
        """Append a sampled token to each sample of a segment; EOS finishes the sample."""
        log_probs, token_ids = self._allowed_candidates(output, segment)
        parents = self._parents_of_samples(segment, log_probs)
        choices, token_ids = log_probs[parents], token_ids[parents]
        columns, indices = sampler.draw(choices), np.arange(len(parents))
        tokens, steps = token_ids[indices, columns], choices[indices, columns]
        drawn = self._state.log_probs[segment, parents] + steps
        is_eos = tokens == self._rules.eos_id
        for index in is_eos.nonzero()[0].tolist():
            self.finish(segment, int(parents[index]), float(drawn[index]), float(steps[index]))
        others = ~is_eos
        rows.put(segment, log_probs=drawn[others], tokens=tokens[others], parents=parents[others], steps=steps[others])

    def _allowed_candidates(self, output: StepOutput, segment: int) -> tuple[FloatArray, IntArray]:
        """Return log-probabilities, descending, and tokens [N, C] for the N live rows of a segment.

        C depends on the segment alone; forbidden tokens have -inf.
        """
        state, rules = self._state, self._rules
        rows, width = slice(state.num_live(segment)), _num_own_candidates(state, segment, rules=rules)
        token_ids = output.token_ids[segment, rows, :width]
        forbids_eos = state.lengths[segment] < state.min_tokens[segment]
        allowed = rules.apply(
            StepOutput(log_probs=output.log_probs[None, segment, rows, :width], token_ids=token_ids[None]),
            forbids_eos=np.array([forbids_eos]),
        )
        return _lowered(state, segment, np.fmax(allowed[0], np.float32(-np.inf)), token_ids)

    def _parents_of_samples(self, segment: int, log_probs: FloatArray) -> IntArray:
        """Return the row that each sample continues; all start from the same row.

        A sample without an allowed token ends without a hypothesis.
        """
        state = self._state
        if state.lengths[segment] == state.prefix_lengths[segment]:
            log_probs = log_probs[[0] * state.searches[segment].num_hypotheses]
            parents = np.zeros(len(log_probs), np.int64)
        else:
            parents = np.arange(len(log_probs))
        return parents[np.isfinite(log_probs[:, 0])]


def num_candidates(state: BeamState, *, rules: CandidateRules, num_rows: int) -> int | IntArray:
    """Return C of the next step, for which the search equals the search over the whole vocabulary.

    If segments have rules of their own or are sampled, the result is C of each row [B, K], so that a segment that needs
    the whole vocabulary does not slow down the others. All placeholders may be among the best candidates of a row.
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
    """Return the number of candidates that a segment needs, not counting masked ones."""
    own, sampler = state.target_rules[segment], state.samplers[segment]
    if state.lengths[segment] < state.prefix_lengths[segment]:
        return 1
    num_taken = sampler.num_choices(rules.vocabulary_size) if sampler else state.searches[segment].beam_size
    return rules.num_candidates(num_taken + (own.num_lowered if own else 0))


def _ranked_output(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> StepOutput:
    """Return the candidates of each row that the widest beam needs, under the rules of each segment.

    The model may return more candidates because one segment needs them, which must not affect the others.
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
    """Return candidates [N, C] of the live rows of a segment under its rules, sorted again by a stable sort."""
    own = state.target_rules[segment]
    lowered = own.apply(log_probs, token_ids) if own else log_probs
    order = (-lowered).argsort(axis=1, kind="stable")
    return np.take_along_axis(lowered, order, axis=1), np.take_along_axis(token_ids, order, axis=1)


def rank_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> BeamExpansion:
    """Return the best candidates of each segment, best first; ties keep the order of rows, then of the model.

    Each row has EOS at most once, so the widest beam plus the number of rows is enough.
    """
    num_segments, num_rows, num_columns = output.log_probs.shape
    forbids_eos = state.lengths < state.min_tokens if state.composition.has_minimums else None
    allowed = rules.apply(output, forbids_eos=forbids_eos)
    # fmax prefers -inf to NaN: a row with NaN dies and does not affect the others.
    log_probs = np.fmax(state.log_probs[:, :num_rows, None] + allowed, -np.inf)  # [B, K, C] float64
    log_probs = log_probs.reshape(num_segments, -1)  # [B, K, C] -> [B, K * C]
    # The stable sort makes the order of ties independent of K and C, which other segments can widen.
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
    """Return [B, 1], the index of the first element of each row in a flattened array [B, columns]; read-only."""
    return np.arange(0, num_segments * num_columns, num_columns)[:, None]


def _without(ranking: BeamExpansion, is_eos: BoolArray) -> BeamExpansion:
    """Return the candidates in their order, but EOS last with -inf."""
    order = is_eos.argsort(axis=1, kind="stable")
    flat = order + _offsets(*is_eos.shape)
    log_probs = ranking.log_probs.take(flat)
    log_probs[is_eos.take(flat)] = -np.inf
    tokens, parents, steps = ranking.tokens.take(flat), ranking.parents.take(flat), ranking.steps.take(flat)
    return BeamExpansion(log_probs=log_probs, tokens=tokens, parents=parents, steps=steps)


def _best(state: BeamState, ranking: BeamExpansion) -> BeamExpansion:
    """Return the best K candidates; EOS is -inf.

    Rows after the first die if no continuation can be part of the result, as in `SearchingBatch.search`.
    """
    width = state.widest_beam
    log_probs, tokens, parents = ranking.log_probs[:, :width], ranking.tokens[:, :width], ranking.parents[:, :width]
    is_beyond_beam = state.composition.is_beyond_beam
    if is_beyond_beam is not None:
        log_probs[is_beyond_beam[:, : log_probs.shape[1]]] = -np.inf
    if state.scores_to_beat.max(initial=-np.inf) > -np.inf:
        is_beaten = log_probs / state.bound_penalties[:, None] <= state.scores_to_beat[:, None]
        is_beaten[state.early_stopping] = False
        is_beaten[:, 0] = False
        log_probs[is_beaten] = -np.inf
    if log_probs[:, -1].min(initial=0.0) == -np.inf:
        # Dead rows copy the best row. With hypotheses of their own, they would keep cache slots from being reused, and
        # the slots determine the order in which attention adds up its terms.
        is_dead = log_probs == -np.inf
        tokens, parents = np.where(is_dead, tokens[:, :1], tokens), np.where(is_dead, parents[:, :1], parents)
    return BeamExpansion(log_probs=log_probs, tokens=tokens, parents=parents, steps=ranking.steps[:, :width])


def find_ended(state: BeamState) -> list[int]:
    """Return the segments whose search is over, including segments without live rows."""
    is_over = state.log_probs[:, 0] / state.bound_penalties <= state.scores_to_beat
    if state.composition.has_early_stops:
        is_over |= state.early_stopping & (state.num_finished >= state.beam_sizes)
    if state.steps_left <= 0:
        is_over |= state.lengths >= state.max_tokens
    ended: list[int] = is_over.nonzero()[0].tolist()
    return ended


def conclude(state: BeamState, segment: int, *, eos_id: int) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of a search that ended, best first.

    Live hypotheses, cut off at the longest target, are returned after the finished ones, if there are fewer than
    `num_hypotheses`. The result is empty only if all candidates were NaN or -inf.
    """
    search, history, length = state.searches[segment], state.history, int(state.lengths[segment])
    hypotheses: list[Hypothesis] = []
    for finished in state.finished[segment]:
        tokens, steps = history.trace(segment, row=finished.parent, length=finished.length - 1)
        hypotheses.append(
            Hypothesis(
                token_ids=(*tokens, eos_id),
                token_log_probs=(*steps, finished.eos_log_prob),
                log_prob=finished.log_prob,
                score=finished.score,
                is_finished=True,
            )
        )
    for row in range(min(state.num_live(segment), search.num_hypotheses - len(hypotheses))):
        tokens, steps = history.trace(segment, row=row, length=length)
        log_prob = state.log_probs.item(segment, row)
        final_score = score(log_prob, length=length, alpha=search.length_penalty)
        hypotheses.append(
            Hypothesis(
                token_ids=tuple(tokens),
                token_log_probs=tuple(steps),
                log_prob=log_prob,
                score=final_score,
                is_finished=False,
            )
        )
    return tuple(rank(hypotheses))
