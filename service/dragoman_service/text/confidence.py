"""Confidence of sentences: a logistic regression on features of the search and the texts of a sentence.

Its weights are in the model bundle; `dragoman export confidence` fits them on text with references. It needs no run of
the network and does not depend on the other options of the request.
"""

import math
from collections.abc import Sequence
from operator import mul

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights

FEATURES: tuple[str, ...] = tuple(ConfidenceWeights.model_fields)  # names in the order of the values
_COMPARING = frozenset(("copied_words", "defect", "hard_violations", "soft_violations"))
_MAX_VIOLATIONS = 4  # more do not make a translation worse
_MAX_LOGIT = 30.0  # keeps the exponential finite


def features(
    source: str,
    target: str,
    *,
    num_source_tokens: int,
    token_log_probs: Sequence[float],
    has_defect: bool,
    num_hard: int,
    num_soft: int,
    usual_log_ratio: float,
) -> tuple[float, ...]:
    """Return the value of each of `FEATURES`, as `ConfidenceWeights` describes them.

    Args:
        source: text that the model gets.
        target: text that the model returns.
        num_source_tokens: tokens of the source, including EOS.
        token_log_probs: log-probabilities of the target, including EOS. Tokens of a prefix have 0 and are ignored.
        has_defect: whether the repetition guard found a defect, or the target is truncated.
        num_hard: hard violations of invariants, and defects that remain after a second search.
        num_soft: other violations.
        usual_log_ratio: see `Confidence.usual_log_ratio`.
    """
    chosen = [log_prob for log_prob in token_log_probs if log_prob] or [0.0]
    words = target.casefold().split()
    source_words = set(source.casefold().split())
    mean, length = sum(chosen) / len(chosen), math.log(num_source_tokens + 1)
    ratio = log_ratio(source, target) - usual_log_ratio
    return (
        mean,
        min(chosen),
        length,
        abs(ratio),
        len(token_log_probs) / (len(target) + 1),
        num_source_tokens / (len(source) + 1),
        sum(map(source_words.__contains__, words)) / (len(words) + 1),
        float(has_defect),
        sum(map(math.exp, chosen)) / len(chosen),
        mean * length,
        max(0.0, -ratio),
        float(min(num_hard, _MAX_VIOLATIONS)),
        float(min(num_soft, _MAX_VIOLATIONS)),
    )


def without_violations(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values of `FEATURES`, with 0 for those that compare the target with the source."""
    return tuple(0.0 if name in _COMPARING else value for name, value in zip(FEATURES, values, strict=True))


def log_ratio(source: str, target: str) -> float:
    """Return the logarithm of the ratio of target to source length, in characters."""
    return math.log((len(target) + 1) / (len(source) + 1))


def probability(confidence: Confidence, values: Sequence[float]) -> float:
    """Return the probability, 0 to 1, that a translation with these features is good."""
    logit = confidence.bias + sum(map(mul, confidence.weights.in_order, values))
    return 1 / (1 + math.exp(-min(max(logit, -_MAX_LOGIT), _MAX_LOGIT)))
