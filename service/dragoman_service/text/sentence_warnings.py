"""Warnings about the sentences of a translation."""

from collections.abc import Iterator, Sequence

from dragoman_service.datatypes import (
    DegenerationReport,
    SegmentResult,
    SentenceAlignment,
    Span,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.text.candidates import Attempt, Candidate, Chosen
from dragoman_service.text.casing import is_irregular

# Confidence of a copied word that needs no warning. Of the words that the bundled models copy with less, such as `Undo`
# (0.06) and `Mond` (0.59), most are untranslated. Words that are the same in both languages have up to 0.95.
_SURE_COPY = 0.75

# Confidence below which a sentence has a warning. The bundled models have it for 0.6 % (en-de) and 0.9 % (de-en) of
# everyday sentences without another warning, for most texts in another language than the source language, and for most
# single words that they do not know.
_LOW_CONFIDENCE = 0.05


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


def attempt_warnings(
    sentence: Sequence[Chosen], alignment: SentenceAlignment, targets: Sequence[Span], *, sentence_index: int
) -> Iterator[TranslationWarning]:
    """Yield the warnings about the violations of a sentence.

    Args:
        sentence: its parts.
        alignment: its position and confidence.
        targets: positions of the parts in the translation.
        sentence_index: number of the sentence.
    """
    for (attempt, candidate), target in zip(sentence, targets, strict=True):
        yield from _violation_warnings(attempt, candidate, target, sentence_index=sentence_index)
    if _is_unsure_copy(sentence, alignment):
        message = f"the word is copied with confidence {alignment.score:.2f}"
        yield _sentence_warning(WarningKind.UNTRANSLATED, message, alignment, sentence_index)


def low_confidence_warnings(alignment: SentenceAlignment, *, sentence_index: int) -> Iterator[TranslationWarning]:
    """Yield the warning about a sentence without other warnings whose translation is probably wrong."""
    if alignment.score is not None and alignment.score < _LOW_CONFIDENCE:
        message = f"the confidence is {alignment.score:.2f}"
        yield _sentence_warning(WarningKind.LOW_CONFIDENCE, message, alignment, sentence_index)


def _sentence_warning(
    kind: WarningKind, message: str, alignment: SentenceAlignment, sentence_index: int
) -> TranslationWarning:
    return TranslationWarning(
        kind=kind, message=message, sentence_index=sentence_index, source=alignment.source, target=alignment.target
    )


def _violation_warnings(
    attempt: Attempt, candidate: Candidate, target: Span, *, sentence_index: int
) -> Iterator[TranslationWarning]:
    # `target` is the position of the part in the translation.
    start = attempt.part.span.start
    for violation in candidate.violations:
        own = violation.target and violation.target.shifted(target.start)
        yield TranslationWarning(
            kind=violation.kind,
            message=violation.detail,
            sentence_index=sentence_index,
            source=violation.source and violation.source.shifted(start),
            target=own and Span(start=min(own.start, target.end), end=min(own.end, target.end)),
        )
    if attempt.is_skipped:
        message = "the search that would repair this sentence was rejected or exceeded its deadline"
        yield TranslationWarning(kind=WarningKind.REPAIR_SKIPPED, message=message, sentence_index=sentence_index)


def _is_unsure_copy(sentence: Sequence[Chosen], alignment: SentenceAlignment) -> bool:
    # Whether a word, which is not an acronym, is copied with a low confidence. It may be a name.
    attempt, candidate = sentence[0]
    if len(sentence) != 1 or not candidate.is_copied_label or alignment.score is None:
        return False
    is_unsure = alignment.score < _SURE_COPY or is_irregular(attempt.source)
    is_acronym = attempt.source.isupper() and not attempt.part.model_text.is_from_capitals
    return is_unsure and len(attempt.source.split()) == 1 and not is_acronym
