"""What a caller should know before relying on a translation: pure functions from results to warnings."""

from collections.abc import Iterator, Mapping, Sequence

from service.datatypes import (
    Defect,
    DefectKind,
    GuardReport,
    SegmentResult,
    SentenceAlignment,
    TranslationWarning,
    WarningKind,
)

WARNING_KINDS: Mapping[DefectKind, WarningKind] = {
    DefectKind.REPETITION: WarningKind.REPETITION,
    DefectKind.COPIED_SOURCE: WarningKind.COPIED_SOURCE,
    DefectKind.LENGTH_RATIO: WarningKind.LENGTH_RATIO,
}
"""Every defect is worth a warning, cured or not."""


def sentence_warnings(
    sentence: SentenceAlignment,
    results: Sequence[SegmentResult],
    *,
    sentence_index: int,
    max_source_tokens: int,
    max_target_tokens: int,
) -> Iterator[TranslationWarning]:
    """Yield what there is to say about one sentence of a translation.

    Args:
        sentence: as it stands in the best hypothesis.
        results: of its parts; one, unless it was split.
        sentence_index: its place in the text.
        max_source_tokens: what the model takes.
        max_target_tokens: what the search was allowed.
    """
    if sentence.is_split:
        message = (
            f"decoded in {len(results)} parts: {sentence.num_source_tokens} source tokens, "
            f"the model takes {max_source_tokens}"
        )
        yield TranslationWarning(kind=WarningKind.SOURCE_SPLIT, message=message, sentence_index=sentence_index)
    if sentence.is_truncated:
        message = f"cut off at the limit of {max_target_tokens} target tokens"
        yield TranslationWarning(kind=WarningKind.TRUNCATED, message=message, sentence_index=sentence_index)
    for number, result in enumerate(results, start=1):
        place = f"part {number} of {len(results)}: " if sentence.is_split else ""
        for kind, message in _findings(result.guard):
            yield TranslationWarning(kind=kind, message=place + message, sentence_index=sentence_index)


def _findings(report: GuardReport | None) -> Iterator[tuple[WarningKind, str]]:
    """Yield one message for each kind of defect, whether found at first or only after decoding again."""
    if report is None:
        return
    found = {defect.kind: defect for defect in report.found}
    remaining = {defect.kind: defect for defect in report.remaining}
    for kind, defect in found.items():
        outcome = _outcome(remaining.get(kind), is_replaced=report.is_replaced)
        yield WARNING_KINDS[kind], f"{defect.detail}; {outcome}"
    for kind, defect in remaining.items():
        if kind not in found:
            yield WARNING_KINDS[kind], f"{defect.detail}, since it was decoded again"


def _outcome(remaining: Defect | None, *, is_replaced: bool) -> str:
    if not is_replaced:
        return "decoding again did not help"
    return f"decoding again left {remaining.detail}" if remaining else "decoding again cured it"
