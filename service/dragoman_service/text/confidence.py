"""Confidence of a translated sentence: logistic regression on features of its search and texts.

The weights are in the model bundle; `dragoman export confidence` fits them on text with references. The confidence
needs no run of the network and does not depend on the other options of the request.
"""

import math
from collections.abc import Sequence
from operator import mul

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights

FEATURES: tuple[str, ...] = tuple(ConfidenceWeights.model_fields)  # names in the order of the values
_MAX_LOGIT = 30.0  # keeps the exponential finite


def features(
    source: str,
    target: str,
    *,
    num_source_tokens: int,
    token_log_probs: Sequence[float],
    has_defect: bool,
    usual_log_ratio: float,
) -> tuple[float, ...]:
    """Return the value of each of `FEATURES`, as `ConfidenceWeights` describes them.

    Args:
        source: text that the model gets.
        target: text that the model returns.
        num_source_tokens: tokens of the source, including EOS.
        token_log_probs: log-probabilities of the target, including EOS. Tokens of a prefix have 0 and are ignored.
        has_defect: whether the repetition guard found a defect, or the target is truncated.
        usual_log_ratio: see `Confidence.usual_log_ratio`.
    """
    chosen = [log_prob for log_prob in token_log_probs if log_prob] or [0.0]
    words = target.casefold().split()
    known = set(source.casefold().split())
    return (
        sum(chosen) / len(chosen),
        min(chosen),
        math.log(num_source_tokens + 1),
        abs(log_ratio(source, target) - usual_log_ratio),
        len(token_log_probs) / (len(target) + 1),
        num_source_tokens / (len(source) + 1),
        sum(map(known.__contains__, words)) / (len(words) + 1),
        float(has_defect),
    )


def log_ratio(source: str, target: str) -> float:
    """Return the logarithm of the ratio of target to source length, in characters."""
    return math.log((len(target) + 1) / (len(source) + 1))


def probability(confidence: Confidence, values: Sequence[float]) -> float:
    """Return the probability, 0 to 1, that a translation with these features is good."""
    logit = confidence.bias + sum(map(mul, confidence.weights.in_order, values))
    return 1 / (1 + math.exp(-min(max(logit, -_MAX_LOGIT), _MAX_LOGIT)))
