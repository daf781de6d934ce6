"""How likely a sentence is translated well, from what its search and its texts say: logistic regression.

The weights are those of the model's bundle; `dragoman export confidence` fits them on text with references. What is
computed costs no run of the network and does not depend on what else the caller asks for.
"""

import math
from collections.abc import Sequence
from operator import mul

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights

FEATURES: tuple[str, ...] = tuple(ConfidenceWeights.model_fields)
"""Names, in the order of the values."""


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
        source: what the model was given.
        target: what it answered.
        num_source_tokens: EOS counted.
        token_log_probs: of the answer, EOS counted; tokens of a prefix have 0 and are left out.
        has_defect: whether the repetition guard found something, or the answer was cut off.
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
    """Return the logarithm of how many times as long a target is, in characters."""
    return math.log((len(target) + 1) / (len(source) + 1))


def probability(confidence: Confidence, values: Sequence[float]) -> float:
    """Return how likely a translation with these features is good, 0 to 1."""
    logit = confidence.bias + sum(map(mul, confidence.weights.in_order, values))
    return 1 / (1 + math.exp(-min(max(logit, -_MAX_LOGIT), _MAX_LOGIT)))


_MAX_LOGIT = 30.0
"""Nothing is surer than this; keeps the exponential finite."""
