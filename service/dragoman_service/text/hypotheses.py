"""Choice and rating of hypotheses: n-best lists of texts, confidence of sentences, warnings.

The confidence is a logistic regression on features of the search and the texts of a sentence. Its weights are in the
model bundle; `dragoman export confidence` fits them on text with references. It needs no run of the network and does
not depend on the other options of the request.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from operator import mul
from typing import TypeVar

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights
from dragoman_service.datatypes import (
    DegenerationReport,
    SegmentResult,
    SentenceAlignment,
    TranslationWarning,
    WarningKind,
)

FEATURES: tuple[str, ...] = tuple(ConfidenceWeights.model_fields)  # names in the order of the values
_COMPARING = frozenset(("copied_words", "defect", "hard_violations", "soft_violations"))
_MAX_VIOLATIONS = 4  # more do not make a translation worse
_MAX_LOGIT = 30.0  # keeps the exponential finite

_T = TypeVar("_T")


def best_combinations(ranks: Sequence[Sequence[tuple[int, bool, float]]], *, count: int) -> list[tuple[int, ...]]:
    """Return the best `count` combinations of one hypothesis per row, as indices into the rows; best first.

    Hypotheses with fewer hard violations come first, then finished ones, then those with a larger sum of scores, then
    the better hypothesis in an earlier row. Keeping the best `count` after each row is exact, because every extension
    preserves the order.

    Args:
        ranks: for each row, best first and not empty: hard violations of each hypothesis, whether it is unfinished,
            and its negated score.
        count: number of combinations, at least 1.
    """
    best = [((0, 0, 0.0), 0)]  # sums of the ranks, and rank by indices
    steps: list[list[tuple[int, int]]] = []  # for each row: number of the extended combination, and the index
    for row in ranks:
        extended = [
            ((num_hard + own_hard, num_unfinished + is_unfinished, cost + own_cost), (rank, index), number)
            for number, ((num_hard, num_unfinished, cost), rank) in enumerate(best)
            # The others have `count` before them.
            for index, (own_hard, is_unfinished, own_cost) in enumerate(row[: count // (number + 1)])
        ]
        chosen = heapq.nsmallest(count, extended)
        orders = {key: rank for rank, key in enumerate(sorted(key for _, key, _ in chosen))}
        best = [(sums, orders[key]) for sums, key, _ in chosen]
        steps.append([(number, index) for _, (_, index), number in chosen])
    combinations = []
    for number in range(len(best)):
        indices = []
        for step in reversed(steps):
            number, index = step[number]  # noqa: PLW2901 - traces one combination back
            indices.append(index)
        combinations.append(tuple(reversed(indices)))
    return combinations


def distinct(candidates: Sequence[_T], texts: Sequence[str]) -> list[_T]:
    """Return the first candidate of each text in order, without the empty text if there is another."""
    firsts: dict[str, _T] = {}
    for candidate, text in zip(candidates, texts, strict=True):
        firsts.setdefault(text, candidate)
    if len(firsts) > 1:
        firsts.pop("", None)
    return list(firsts.values())


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


def sentence_warnings(
    sentence: SentenceAlignment,
    results: Sequence[SegmentResult],
    *,
    sentence_index: int,
    max_source_tokens: int,
    max_target_tokens: int,
) -> Iterator[TranslationWarning]:
    """Yield the warnings about one sentence from the results of its parts.

    `max_source_tokens` is the limit of the model, `max_target_tokens` that of the search.
    """
    messages: list[tuple[WarningKind, str]] = []
    if sentence.is_split:
        message = f"decoded in {len(results)} parts: {sentence.num_source_tokens} source tokens exceed the model limit"
        messages.append((WarningKind.SOURCE_SPLIT, f"{message} of {max_source_tokens}"))
    if sentence.is_truncated:
        messages.append((WarningKind.TRUNCATED, f"truncated at the limit of {max_target_tokens} target tokens"))
    for number, result in enumerate(results, start=1):
        part = f"part {number} of {len(results)}: " if sentence.is_split else ""
        if result.degeneration is not None:
            messages += [(kind, part + message) for kind, message in _degenerations(result.degeneration)]
    for kind, message in messages:
        yield TranslationWarning(kind=kind, message=message, sentence_index=sentence_index)


def _degenerations(report: DegenerationReport) -> Iterator[tuple[WarningKind, str]]:
    found = {defect.kind: defect.detail for defect in report.found}
    remaining = {defect.kind: defect.detail for defect in report.remaining}
    for kind, detail in found.items():
        effect = f"still gave {remaining[kind]}" if kind in remaining else "fixed it"
        yield WarningKind[kind.name], f"{detail}; redecoding {effect if report.is_replaced else 'did not help'}"
    for kind, detail in remaining.items():
        if kind not in found:
            yield WarningKind[kind.name], f"{detail}, after redecoding"
