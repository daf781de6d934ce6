"""Hypotheses that end: their score, and whether they are among the best of their segment."""

import bisect
from collections.abc import Callable, Sequence

from service.decoding.beam_state import BeamState, FinishedHypothesis
from service.decoding.scoring import coverage_penalty, score
from service.decoding.step_model import FloatArray

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
        final_score = score(log_prob, length=length, alpha=search.length_penalty_alpha)
        if search.coverage_penalty_beta > 0:
            if final_score <= state.scores_to_beat[segment]:
                return  # coverage only takes it further down: no need to look at the attention
            final_score += self._coverage_penalty(segment, parent, search.coverage_penalty_beta)
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
