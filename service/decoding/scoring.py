"""Length penalty, scores, ranking, and the bound that says when a search can stop."""

from collections.abc import Iterable

from service.datatypes import Hypothesis, SearchConfig


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
    """Return `log_prob` divided by the length penalty: what hypotheses are compared by."""
    return log_prob / length_penalty(length, alpha=alpha)


def bound_penalty(search: SearchConfig) -> float:
    """Divisor that turns the log-probability of a live hypothesis into the best score it may still reach.

    A live log-probability only falls, so its final score is at most `log_prob / lp` for the largest penalty among the
    lengths at which the hypothesis may end. The penalty is monotone in the length (rising for alpha > 0, falling for
    alpha < 0), so the largest one belongs to the shortest or to the longest of these lengths.
    """
    shortest = min(search.min_target_tokens + 1, search.max_target_tokens)
    return max(
        length_penalty(shortest, alpha=search.length_penalty_alpha),
        length_penalty(search.max_target_tokens, alpha=search.length_penalty_alpha),
    )


def rank(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Best first: finished before unfinished, then by score; equal ones keep their order."""
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.is_finished, -hypothesis.score))
