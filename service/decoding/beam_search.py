"""One step of the search over a batch of segments, each with its own options.

Of the candidates of a segment, ranked by log-probability, those among the best K that are EOS finish a hypothesis;
the best K others live on. A search ends when no live hypothesis can still beat the worst finished one it would
return (an exact bound: ending early never changes the answer), or at its longest target. One with `early_stopping` ends
with the K-th hypothesis that finishes, too, as in the decoders of CTranslate2 (under a length penalty) and fairseq.
Greedy search (K = 1) ends with the first EOS: that is what the name promises.

Two kinds of segments take no part in the ranking of a step: those whose next token is one of their prefix, and those
whose tokens are drawn at random.
"""

import bisect
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.datatypes import Hypothesis, SearchConfig
from service.decoding.beam_state import BeamState, FinishedHypothesis, Survivors
from service.decoding.constraints import BoolArray, CandidateRules
from service.decoding.sampling import Sampler
from service.decoding.scoring import coverage_penalty, rank, score
from service.decoding.step_model import DoubleArray, FloatArray, IntArray, StepOutput

Attend = Callable[[int, Sequence[int]], FloatArray]
"""`StepBatch.cross_attention`"""


class Finisher:
    """Takes the hypotheses that end in one step into the state."""

    def __init__(self, state: BeamState, *, eos_id: int, attend: Attend) -> None:
        """Begin a step; `attend` is asked for segments with a coverage penalty only."""
        self._state = state
        self._eos_id = eos_id
        self._attend = attend

    def finish(self, segment: int, *, parent: int, log_prob: float, eos_log_prob: float) -> None:
        """Score the hypothesis of row `parent` with EOS appended, and keep it if it is among the best.

        Args:
            segment: index into the batch.
            parent: row that holds the hypothesis so far.
            log_prob: of the hypothesis, EOS included.
            eos_log_prob: of EOS alone.
        """
        state = self._state
        state.num_finished[segment] += 1
        search, length = state.searches[segment], int(state.lengths[segment]) + 1
        final_score = score(log_prob, length=length, alpha=search.length_penalty)
        if search.coverage_penalty > 0:
            if final_score <= state.scores_to_beat[segment]:
                return  # coverage only takes it further down: no need to look at the attention
            final_score += self._coverage_penalty(segment, parent, search.coverage_penalty)
        hypothesis = FinishedHypothesis(
            parent=parent, length=length, eos_log_prob=eos_log_prob, log_prob=log_prob, score=final_score
        )
        _keep_best(state, segment, hypothesis)

    def _coverage_penalty(self, segment: int, parent: int, beta: float) -> float:
        state = self._state
        tokens, _ = state.history.trace(segment, row=parent, length=int(state.lengths[segment]))
        return coverage_penalty(self._attend(segment, [*tokens, self._eos_id]), beta=beta)


def _keep_best(state: BeamState, segment: int, hypothesis: FinishedHypothesis) -> None:
    """Put a finished hypothesis in its place among those that would be returned."""
    search, finished = state.searches[segment], state.finished[segment]
    bisect.insort(finished, hypothesis, key=lambda other: -other.score)
    del finished[search.num_hypotheses :]
    if search.beam_size == 1:
        state.scores_to_beat[segment] = float("inf")  # greedy, or the only chain: the first EOS is the end
    elif len(finished) == search.num_hypotheses:
        state.scores_to_beat[segment] = finished[-1].score


def num_candidates(state: BeamState, *, rules: CandidateRules) -> int:
    """C of the next step: what the neediest segment needs to search as if over the whole vocabulary."""
    most = rules.num_candidates(state.widest_beam)
    if not state.members.has_rules and not state.members.drawn:
        return most
    for segment, (own, sampler) in enumerate(zip(state.target_rules, state.samplers, strict=True)):
        if own is not None or sampler is not None:
            most = max(most, num_own_candidates(state, segment, rules=rules))
    return most


def num_own_candidates(state: BeamState, segment: int, *, rules: CandidateRules) -> int:
    """Return how many candidates one segment needs for itself, whatever its neighbours need."""
    own, sampler = state.target_rules[segment], state.samplers[segment]
    if state.lengths[segment] < state.prefix_lengths[segment]:
        return 1
    num_taken = sampler.num_choices(rules.vocabulary_size) if sampler else state.searches[segment].beam_size
    return rules.num_candidates(num_taken + (own.num_lowered if own else 0))


def ranked_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> StepOutput:
    """Return as many candidates a row as the widest beam needs, after the segments' own rules have lowered some.

    So however many more the model gave because one segment needs them, the others rank no more than without it.
    """
    width = rules.num_candidates(state.widest_beam)
    if output.log_probs.shape[2] == width and not state.members.has_rules:
        return output
    log_probs, token_ids = output.log_probs[:, :, :width], output.token_ids[:, :, :width]
    ruled = [segment for segment, own in enumerate(state.target_rules) if own and not state.samplers[segment]]
    if ruled:
        log_probs, token_ids = log_probs.copy(), token_ids.copy()
    for segment in ruled:
        num_rows = min(state.num_live(segment), output.log_probs.shape[1])
        lowered = _lowered(state, segment, output.log_probs[segment, :num_rows], output.token_ids[segment, :num_rows])
        log_probs[segment, :num_rows], token_ids[segment, :num_rows] = (array[:, :width] for array in lowered)
    return StepOutput(log_probs=log_probs, token_ids=token_ids)


def drawn_candidates(
    state: BeamState, segment: int, output: StepOutput, *, rules: CandidateRules
) -> tuple[FloatArray, IntArray]:
    """Return log-probabilities, descending, and tokens [N, C] that the N live rows of a segment may draw.

    C depends on the segment alone; tokens not allowed have -inf.
    """
    rows, width = slice(state.num_live(segment)), num_own_candidates(state, segment, rules=rules)
    token_ids = output.token_ids[segment, rows, :width]
    forbids_eos = state.lengths[segment] < state.min_tokens[segment]
    allowed = rules.apply(
        StepOutput(log_probs=output.log_probs[None, segment, rows, :width], token_ids=token_ids[None]),
        forbids_eos=np.array([forbids_eos]),
    )
    return _lowered(state, segment, np.fmax(allowed[0], np.float32(-np.inf)), token_ids)


def _lowered(state: BeamState, segment: int, log_probs: FloatArray, token_ids: IntArray) -> tuple[FloatArray, IntArray]:
    """Return candidates [N, C] of a segment's live rows under its own rules, sorted again; ties keep their order."""
    own = state.target_rules[segment]
    lowered = own.apply(log_probs, token_ids) if own else log_probs
    order = (-lowered).argsort(axis=1, kind="stable")
    return np.take_along_axis(lowered, order, axis=1), np.take_along_axis(token_ids, order, axis=1)


def force_token(state: BeamState, survivors: Survivors, segment: int) -> None:
    """Append the next token of a prefix: nothing is chosen, so nothing is added to the log-probability."""
    survivors.put(
        segment,
        log_probs=np.zeros(1),
        tokens=np.array([state.searches[segment].target_prefix[state.lengths[segment]]]),
        parents=np.zeros(1, np.int64),
        steps=np.zeros(1, np.float32),
    )


def draw_tokens(
    state: BeamState,
    survivors: Survivors,
    segment: int,
    *,
    sampler: Sampler,
    candidates: tuple[FloatArray, IntArray],
    eos_id: int,
    finisher: Finisher,
) -> None:
    """Append a token drawn at random to every chain of a segment; those that draw EOS finish.

    Args:
        state: before the step.
        survivors: of the step; the segment's rows are replaced.
        segment: index into the batch.
        sampler: of the segment.
        candidates: of its live rows, as `drawn_candidates` gives them.
        eos_id: token that ends a hypothesis.
        finisher: takes the chains that end.
    """
    parents = _parents(state, segment, candidates[0])
    choices, token_ids = candidates[0][parents], candidates[1][parents]
    columns = sampler.draw(choices)
    rows = np.arange(len(parents))
    tokens, steps = token_ids[rows, columns], choices[rows, columns]
    log_probs = state.log_probs[segment, parents] + steps
    is_eos = tokens == eos_id
    for row in is_eos.nonzero()[0].tolist():
        finisher.finish(
            segment, parent=int(parents[row]), log_prob=float(log_probs[row]), eos_log_prob=float(steps[row])
        )
    survivors.put(
        segment, log_probs=log_probs[~is_eos], tokens=tokens[~is_eos], parents=parents[~is_eos], steps=steps[~is_eos]
    )


def _parents(state: BeamState, segment: int, choices: FloatArray) -> IntArray:
    """Return the row that each chain continues; all begin in the same one. A chain without a possible token dies."""
    if state.lengths[segment] == state.prefix_lengths[segment]:
        choices = choices[[0] * state.searches[segment].num_hypotheses]
        parents = np.zeros(len(choices), np.int64)
    else:
        parents = np.arange(len(choices))
    return parents[np.isfinite(choices[:, 0])]


def advance_chains(
    state: BeamState,
    survivors: Survivors,
    output: StepOutput,
    *,
    rules: CandidateRules,
    eos_id: int,
    finisher: Finisher,
) -> Survivors:
    """Return the survivors of a step with the rows of the segments of `BeamState.steered` in place."""
    forced = state.forced
    for segment in forced:
        force_token(state, survivors, segment)
    for segment, sampler in enumerate(state.samplers):
        if sampler is not None and segment not in forced:
            survivors = survivors.widened(state.widest_beam)
            candidates = drawn_candidates(state, segment, output, rules=rules)
            draw_tokens(
                state,
                survivors,
                segment,
                sampler=sampler,
                candidates=candidates,
                eos_id=eos_id,
                finisher=finisher,
            )
    return survivors


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


def advance(state: BeamState, output: StepOutput, *, rules: CandidateRules, eos_id: int, attend: Attend) -> None:
    """Take one step: finish what ends with EOS, let the best of the rest live on.

    Args:
        state: changed in place.
        output: candidates of the rows up to `state.num_live_rows`, at least `num_candidates` of each.
        rules: what may be taken.
        eos_id: token that ends a hypothesis.
        attend: asked for hypotheses that end with a coverage penalty.
    """
    finisher = Finisher(state, eos_id=eos_id, attend=attend)
    ranking = rank_candidates(state, ranked_candidates(state, output, rules=rules), rules=rules)
    steered = state.steered
    if steered:
        ranking.log_probs[steered] = -np.inf
    is_eos = ranking.tokens == eos_id
    if is_eos[:, : state.widest_beam].any():
        _finish(state, ranking, is_eos, finisher)
        ranking = _without(ranking, is_eos)
    survivors = _survivors(state, ranking)
    if steered:
        survivors = advance_chains(state, survivors, output, rules=rules, eos_id=eos_id, finisher=finisher)
    state.extend(survivors)


def rank_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> Ranking:
    """Return the best candidates of each segment; ties go to the better row, then to the model's order.

    A row offers EOS once, so as many columns as the widest beam plus the rows hold the widest beam's share of others.
    """
    num_segments, num_rows, num_columns = output.log_probs.shape
    forbids_eos = state.lengths < state.min_tokens if state.members.has_minimums else None
    allowed = rules.apply(output, forbids_eos=forbids_eos)
    # fmax takes -inf over NaN: a broken row dies and leaves its neighbours alone.
    log_probs = np.fmax(state.log_probs[:, :num_rows, None] + allowed, -np.inf)  # [B, K, C] float64
    log_probs = log_probs.reshape(num_segments, -1)  # [B, K, C] -> [B, K * C]
    # The stable sort makes the order of ties independent of how far neighbours widen K and C.
    order = (-log_probs).argsort(axis=1, kind="stable")[:, : state.widest_beam + num_rows]
    flat = order + _offsets(*log_probs.shape)
    return Ranking(
        log_probs=log_probs.take(flat),
        tokens=output.token_ids.take(flat),
        parents=order // num_columns,
        steps=output.log_probs.take(flat),
    )


@functools.lru_cache(maxsize=64)
def _offsets(num_segments: int, num_columns: int) -> IntArray:
    """Return [B, 1]: where the rows of an array [B, columns] begin when it is laid out flat; not to be changed."""
    return np.arange(0, num_segments * num_columns, num_columns)[:, None]


def _finish(state: BeamState, ranking: Ranking, is_eos: BoolArray, finisher: Finisher) -> None:
    """Keep the hypotheses that end now: EOS among the best K candidates of a segment."""
    within_beam = np.arange(is_eos.shape[1]) < state.beam_sizes[:, None]
    segments, ranks = (is_eos & within_beam & (ranking.log_probs > -np.inf)).nonzero()
    for segment, column in zip(segments.tolist(), ranks.tolist(), strict=True):
        finisher.finish(
            segment,
            parent=int(ranking.parents[segment, column]),
            log_prob=float(ranking.log_probs[segment, column]),
            eos_log_prob=float(ranking.steps[segment, column]),
        )


def _without(ranking: Ranking, is_eos: BoolArray) -> Ranking:
    """Return the candidates other than EOS in their order, behind them those that are, as -inf."""
    order = is_eos.argsort(axis=1, kind="stable")  # others first, each part in order
    flat = order + _offsets(*is_eos.shape)
    log_probs = ranking.log_probs.take(flat)
    log_probs[is_eos.take(flat)] = -np.inf
    return Ranking(
        log_probs=log_probs,
        tokens=ranking.tokens.take(flat),
        parents=ranking.parents.take(flat),
        steps=ranking.steps.take(flat),
    )


def _survivors(state: BeamState, ranking: Ranking) -> Survivors:
    """Return the best K candidates, none of which is EOS unless it is -inf."""
    width = state.widest_beam
    log_probs, tokens, parents = ranking.log_probs[:, :width], ranking.tokens[:, :width], ranking.parents[:, :width]
    is_beyond_beam = state.members.is_beyond_beam
    if is_beyond_beam is not None:
        log_probs[is_beyond_beam[:, : log_probs.shape[1]]] = -np.inf
    if log_probs[:, -1].min(initial=0.0) == -np.inf:
        # Dead rows do as the best row does: with a hypothesis of their own they would keep cache slots from being
        # reused, and where tokens lie in the cache decides the order in which attention adds them up.
        is_dead = log_probs == -np.inf
        tokens, parents = np.where(is_dead, tokens[:, :1], tokens), np.where(is_dead, parents[:, :1], parents)
    return Survivors(log_probs=log_probs, tokens=tokens, parents=parents, steps=ranking.steps[:, :width])


def find_ended(state: BeamState) -> list[int]:
    """Return the segments whose search is over; one without live rows is over too."""
    is_over = state.log_probs[:, 0] / state.bound_penalties <= state.scores_to_beat
    if state.members.has_early_stops:
        is_over |= state.early_stopping & (state.num_finished >= state.beam_sizes)
    if state.steps_left <= 0:
        is_over |= state.lengths >= state.max_tokens
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
        score=score(log_prob, length=length, alpha=search.length_penalty),
        is_finished=False,
    )
