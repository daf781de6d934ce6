"""Attempts: the searches of a part with their candidates, and the warnings about the chosen ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman_service.datatypes import SegmentResult, SentenceAlignment, Span, TranslationWarning, WarningKind
from dragoman_service.text.candidates import Candidate
from dragoman_service.text.casing import is_irregular
from dragoman_service.text.plans import TextPart

# Confidence of a copied word that needs no warning. Words of the bundled models that are the same in both languages,
# such as `Computer`, have 0.4 or more; untranslated ones, such as `Undo`, have up to 0.3.
_SURE_COPY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A search of a part, and its hypotheses as texts."""

    text: str  # the text of the request that contains the part
    source: str  # the text of the part
    part: TextPart
    result: SegmentResult
    candidates: tuple[Candidate, ...]  # best first
    is_skipped: bool = False  # whether a second search was needed, but has no result

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.candidates[0]


Chosen = tuple[Attempt, Candidate]
"""An attempt, and one of its candidates."""


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
        yield TranslationWarning(
            kind=WarningKind.UNTRANSLATED,
            message=f"the word is copied with confidence {alignment.score:.2f}",
            sentence_index=sentence_index,
            source=alignment.source,
            target=alignment.target,
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
