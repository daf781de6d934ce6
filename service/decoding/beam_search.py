"""One step of beam search over a batch of segments, each with its own options.

Of the candidates of a segment, ranked by log-probability, those among the best K that are EOS finish a hypothesis;
the best K others live on. A search ends when no live hypothesis can still beat the worst finished one it would
return (an exact bound: ending early never changes the answer), or at its longest target.
Greedy search (K = 1) ends with the first EOS: that is what the name promises.
"""

import bisect
from dataclasses import dataclass

import numpy as np

from service.datatypes import Hypothesis, SearchConfig
from service.decoding.beam_state import BeamState, DoubleArray, FinishedHypothesis
from service.decoding.constraints import BoolArray, CandidateRules
from service.decoding.scoring import rank, score
from service.decoding.step_model import FloatArray, IntArray, StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best candidates of each segment over all its rows: N columns, best first."""

    log_probs: DoubleArray
    """[B, N] of the hypothesis with the candidate appended; -inf if forbidden or of a dead row."""

    tokens: IntArray
    """[B, N]"""

    parents: IntArray
    """[B, N] the row it continues."""

    steps: FloatArray
    """[B, N] log-probability of the candidate alone."""


def advance(state: BeamState, output: StepOutput, *, rules: CandidateRules, eos_id: int) -> None:
    """Take one step: finish what ends with EOS, let the best of the rest live on.

    Args:
        state: changed in place.
        output: candidates of the rows up to `state.num_live_rows`.
        rules: what may be taken.
        eos_id: token that ends a hypothesis.
    """
    ranking = rank_candidates(state, output, rules=rules)
    is_eos = ranking.tokens == eos_id
    _finish(state, ranking, is_eos)
    _survive(state, ranking, is_eos)


def rank_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> Ranking:
    """Return the best candidates of each segment; ties go to the better row, then to the model's order.

    A row offers EOS once, so as many columns as the widest beam plus the rows hold the widest beam's share of others.
    """
    num_segments, num_rows, num_candidates = output.log_probs.shape
    allowed = rules.apply(output, forbids_eos=state.lengths < state.min_tokens)
    # fmax takes -inf over NaN: a broken row dies and leaves its neighbours alone.
    log_probs = np.fmax(state.log_probs[:, :num_rows, None] + allowed, -np.inf)  # [B, K, C] float64
    log_probs = log_probs.reshape(num_segments, -1)  # [B, K, C] -> [B, K * C]
    # The stable sort makes the order of ties independent of how far neighbours widen K and C.
    order = (-log_probs).argsort(axis=1, kind="stable")[:, : state.widest_beam + num_rows]
    flat = order + np.arange(0, log_probs.size, log_probs.shape[1])[:, None]
    return Ranking(
        log_probs=log_probs.ravel()[flat],
        tokens=output.token_ids.ravel()[flat],
        parents=order // num_candidates,
        steps=output.log_probs.ravel()[flat],
    )


def _finish(state: BeamState, ranking: Ranking, is_eos: BoolArray) -> None:
    """Keep the hypotheses that end now: EOS among the best K candidates of a segment."""
    within_beam = np.arange(is_eos.shape[1]) < state.beam_sizes[:, None]
    segments, ranks = (is_eos & within_beam & (ranking.log_probs > -np.inf)).nonzero()
    for segment, column in zip(segments.tolist(), ranks.tolist(), strict=True):
        length = int(state.lengths[segment]) + 1
        log_prob = float(ranking.log_probs[segment, column])
        hypothesis = FinishedHypothesis(
            parent=int(ranking.parents[segment, column]),
            length=length,
            eos_log_prob=float(ranking.steps[segment, column]),
            log_prob=log_prob,
            score=score(log_prob, length=length, alpha=state.searches[segment].length_penalty_alpha),
        )
        _keep_best(state, segment, hypothesis)


def _keep_best(state: BeamState, segment: int, hypothesis: FinishedHypothesis) -> None:
    """Put a finished hypothesis in its place among those that would be returned."""
    search, finished = state.searches[segment], state.finished[segment]
    bisect.insort(finished, hypothesis, key=lambda other: -other.score)
    del finished[search.num_hypotheses :]
    if search.beam_size == 1:
        state.scores_to_beat[segment] = np.inf  # greedy: the first EOS is the end
    elif len(finished) == search.num_hypotheses:
        state.scores_to_beat[segment] = finished[-1].score


def _survive(state: BeamState, ranking: Ranking, is_eos: BoolArray) -> None:
    """Let the best K candidates other than EOS be the live hypotheses."""
    num_columns = is_eos.shape[1]
    picked = is_eos.argsort(axis=1, kind="stable")[:, : state.widest_beam]  # others first, each part in order
    flat = picked + np.arange(0, is_eos.size, num_columns)[:, None]
    is_dead = is_eos.ravel()[flat] | (np.arange(picked.shape[1]) >= state.beam_sizes[:, None])
    log_probs = ranking.log_probs.ravel()[flat]
    log_probs[is_dead] = -np.inf
    tokens, parents = ranking.tokens.ravel()[flat], ranking.parents.ravel()[flat]
    # Dead rows do as the best row does: with a hypothesis of their own they would keep cache slots from being reused,
    # and where tokens lie in the cache decides the order in which attention adds them up.
    tokens, parents = np.where(is_dead, tokens[:, :1], tokens), np.where(is_dead, parents[:, :1], parents)
    state.extend(
        log_probs=log_probs,
        tokens=tokens,
        parents=parents,
        steps=ranking.steps.ravel()[flat],
    )


def find_ended(state: BeamState) -> list[int]:
    """Return the segments whose search is over; one without live rows is over too."""
    best_possible = state.log_probs[:, 0] / state.bound_penalties
    is_over = (best_possible <= state.scores_to_beat) | (state.lengths >= state.max_tokens)
    ended: list[int] = is_over.nonzero()[0].tolist()
    return ended


def conclude(state: BeamState, segment: int, *, eos_id: int) -> tuple[Hypothesis, ...]:
    """Return the answer of a search that ended, best first.

    Live hypotheses, cut off by the longest target, only fill places for which there is no finished one, and stand
    behind those whatever their score. Empty only if the model gave no possible continuation (all NaN or -inf).
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
        score=score(log_prob, length=length, alpha=search.length_penalty_alpha),
        is_finished=False,
    )
