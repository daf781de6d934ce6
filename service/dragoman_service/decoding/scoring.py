"""Scores of hypotheses: length and coverage penalty, ranking, and the bound at which a search can stop."""

from collections.abc import Iterable

import numpy as np

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.step_model import FloatArray

_MIN_COVERAGE = 1e-6  # an attention weight may underflow to 0, whose logarithm is not finite


def length_penalty(length: int, *, alpha: float) -> float:
    """Return the length penalty, ((5 + length) / 6) ** alpha (Wu et al. 2016, arXiv:1609.08144, section 7).

    Args:
        length: target tokens including EOS, excluding BOS; at least 1.
        alpha: 0 disables the penalty; larger values favour longer hypotheses.

    Raises:
        ValueError: if length is below 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}, must be at least 1")
    return float(((5.0 + length) / 6.0) ** alpha)


def score(log_prob: float, *, length: int, alpha: float) -> float:
    """Return `log_prob` divided by the length penalty, for comparisons of hypotheses."""
    return log_prob / length_penalty(length, alpha=alpha)


def coverage_penalty(attention: FloatArray, *, beta: float) -> float:
    """Return the coverage penalty of a finished hypothesis, which is added to its score; 0 or less.

    cp(X; Y) = beta * sum_i log(min(sum_j p_ij, 1)), from Wu et al. 2016 (arXiv:1609.08144), section 7. The attention
    p_ij is the mean over the heads of the last decoder layer. EOS counts in source and target, as in the length.

    Args:
        attention: [L, H, T, S] from `StepBatch.cross_attention`, including EOS.
        beta: weight, at least 0.
    """
    attended = attention[-1].mean(axis=0, dtype=np.float64).sum(axis=0)  # [H, T, S] -> [S]
    return beta * float(np.log(attended.clip(_MIN_COVERAGE, 1.0)).sum())


def bound_penalty(search: SearchConfig) -> float:
    """Return the divisor that turns the log-probability of a live hypothesis into an upper bound of its final score.

    Every token adds 0 or less to a log-probability: a repetition penalty is a factor of at least 1, and tokens of a
    prefix add 0. So the final score is at most `log_prob / lp` for the largest length penalty among the lengths at
    which the hypothesis can end. The penalty is monotone in the length (rising for alpha > 0, falling for alpha < 0),
    so the largest one belongs to the shortest or to the longest length. A coverage penalty is 0 or less and only lowers
    the final score.
    """
    shortest = min(max(search.min_target_tokens, len(search.target_prefix)) + 1, search.max_target_tokens)
    return max(
        length_penalty(shortest, alpha=search.length_penalty),
        length_penalty(search.max_target_tokens, alpha=search.length_penalty),
    )


def rank(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Sort hypotheses, best first: finished before unfinished, then by score. The sort is stable."""
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.is_finished, -hypothesis.score))
