"""Length and coverage penalty, scores, ranking, and the bound at which a search can stop."""

from collections.abc import Iterable

import numpy as np

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.step_model import FloatArray

_MIN_COVERAGE = 1e-6
"""Least coverage of a source token: a weight may underflow to 0, whose logarithm is not finite."""


def length_penalty(length: int, *, alpha: float) -> float:
    """Divisor that keeps beam search from preferring short hypotheses.

    lp(Y) = ((5 + |Y|) / 6) ** alpha, from Wu et al. 2016 (arXiv:1609.08144), section 7.

    Args:
        length: |Y| in target tokens, EOS counted, BOS not; at least 1.
        alpha: 0 disables the penalty; larger values favour longer hypotheses.

    Raises:
        ValueError: if length is below 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}, must be at least 1")
    return float(((5.0 + length) / 6.0) ** alpha)


def score(log_prob: float, *, length: int, alpha: float) -> float:
    """Return `log_prob` divided by the length penalty, by which hypotheses are compared."""
    return log_prob / length_penalty(length, alpha=alpha)


def coverage_penalty(attention: FloatArray, *, beta: float) -> float:
    """What is added to the score of a finished hypothesis for source tokens that it leaves uncovered; 0 or less.

    cp(X; Y) = beta * sum_i log(min(sum_j p_ij, 1)), from Wu et al. 2016 (arXiv:1609.08144), section 7. A transformer
    has many attentions where that network had one: p_ij is the mean over the heads of the last decoder layer, the one
    nearest to the choice of the token. EOS counts on both sides, as it does in the length.

    Args:
        attention: [L, H, T, S] as `StepBatch.cross_attention` gives it for the hypothesis, EOS included.
        beta: weight, at least 0.
    """
    attended = attention[-1].mean(axis=0, dtype=np.float64).sum(axis=0)  # [H, T, S] -> [S]
    return beta * float(np.log(attended.clip(_MIN_COVERAGE, 1.0)).sum())


def bound_penalty(search: SearchConfig) -> float:
    """Divisor that turns the log-probability of a live hypothesis into the best score it may still reach.

    A live log-probability only falls: every token adds 0 or less, and a repetition penalty, being a factor of at least
    1, makes what it adds no larger; tokens of a prefix add 0. So the final score is at most `log_prob / lp` for the
    largest penalty among the lengths at which the hypothesis may end. The penalty is monotone in the length (rising
    for alpha > 0, falling for alpha < 0), so the largest one belongs to the shortest or to the longest of these
    lengths. A coverage penalty, added when a hypothesis ends, is the logarithm of at most 1 times a weight of at least
    0: it can only take the final score further below the bound.
    """
    shortest = min(max(search.min_target_tokens, len(search.target_prefix)) + 1, search.max_target_tokens)
    return max(
        length_penalty(shortest, alpha=search.length_penalty),
        length_penalty(search.max_target_tokens, alpha=search.length_penalty),
    )


def rank(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Best first: finished before unfinished, then by score; equal ones keep their order."""
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.is_finished, -hypothesis.score))
