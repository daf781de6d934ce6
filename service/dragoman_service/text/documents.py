"""Documents as a sequence of sentences, each with the text that is copied around it."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import (
    Segment,
    Span,
    StageTimings,
    TextHypothesis,
    TranslatedSentence,
    Translation,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.text.alignment import shifted
from dragoman_service.text.plans import FixedTranslation, TextPart, TextPlan
from dragoman_service.text.segmentation import join

# Copied text on either side of a sentence of a document. Longer text becomes messages of its own.
MAX_COPIED_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSentence:
    """One sentence of a document with the text that is copied around it; or only text to copy."""

    before: str  # copied before the sentence
    plan: TextPlan | None = None  # the sentence, with positions relative to its start; None: nothing to translate
    start: int = 0  # position of the sentence in the document
    after: str = ""  # copied after the last sentence
    warnings: tuple[TranslationWarning, ...] = ()  # about the copied text, with positions in the document
    is_last: bool = False

    @property
    def segments(self) -> list[Segment]:
        """Segments of the sentence."""
        return [part.segment for part in self.plan.parts] if self.plan else []

    @property
    def num_codes(self) -> int:
        """Inline codes of the sentence."""
        return sum(len(part.unit.codes) for part in self.plan.parts if part.unit) if self.plan else 0


def document_sentences(
    text: str, sentences: Iterable[Sequence[TextPart]], *, separator: str, fixed: deque[FixedTranslation] | None = None
) -> Iterator[PlannedSentence]:
    """Yield a document sentence by sentence, each as soon as it is known whether it is the last; at least one.

    The parts of each sentence are read only as far as needed. `separator` is written between two sentences that touch.
    `fixed` has the fixed translations before the sentence that was read last; they are removed once they are used.
    """
    fixed = deque() if fixed is None else fixed
    last: PlannedSentence | None = None
    copied_to = 0
    for parts in sentences:
        if last:
            yield last
        start, end = parts[0].span.start, max(part.span.end for part in parts)
        copied, warnings = _copied(text, copied_to, start, fixed)
        yield from (PlannedSentence(before=chunk) for chunk in copied[:-1])
        before = copied[-1] or (separator if last else "")
        first = parts[0].sentence_index
        shifted_parts = tuple(
            replace(part.shifted(-start), sentence_index=part.sentence_index - first) for part in parts
        )
        plan = TextPlan(text=text[start:end], parts=shifted_parts, fixed=tuple(_take(fixed, start, end)))
        last = PlannedSentence(before=before, plan=plan, start=start, warnings=warnings)
        copied_to = end
    (*copied, after), warnings = _copied(text, copied_to, len(text), fixed)
    if last:
        yield last if copied else replace(last, after=after, warnings=last.warnings + warnings, is_last=True)
    yield from (PlannedSentence(before=chunk) for chunk in copied)
    if copied or not last:
        yield PlannedSentence(before=after, warnings=warnings, is_last=True)


def untranslated_warning(span: Span) -> TranslationWarning:
    """Return the warning about a sentence that the model cannot spell."""
    message = "the model cannot spell most letters of this sentence, which stays as it is"
    return TranslationWarning(kind=WarningKind.UNTRANSLATED, message=message, sentence_index=None, source=span)


def _copied(
    text: str, start: int, end: int, fixed: deque[FixedTranslation]
) -> tuple[list[str], tuple[TranslationWarning, ...]]:
    # A range of a text with its fixed translations, in chunks of limited size, and its warnings. An empty range is one
    # chunk.
    copied = text[start:end]
    terms = _take(fixed, start, end)
    if terms:
        copied = join(copied, [term.span for term in terms], [term.target for term in terms]).text
    warnings = (untranslated_warning(term.span.shifted(start)) for term in terms if term.is_untranslated)
    chunks = [copied[at : at + MAX_COPIED_CHARACTERS] for at in range(0, max(len(copied), 1), MAX_COPIED_CHARACTERS)]
    return chunks, tuple(warnings)


def _take(fixed: deque[FixedTranslation], start: int, end: int) -> list[FixedTranslation]:
    # Removes the fixed translations before `end`, and returns them with positions relative to `start`.
    taken = []
    while fixed and fixed[0].span.end <= end:
        term = fixed.popleft()
        taken.append(replace(term, span=term.span.shifted(-start)))
    return taken


class TranslatedDocument:
    """Progress of a document. Counts the characters of the translation for the positions of its sentences."""

    def __init__(self, *, model_name: str, model_version: str) -> None:
        self._model_name = model_name
        self._model_version = model_version
        self._num_characters = 0
        self.num_sentences = 0
        self.text_s = 0.0

    def next_sentence(
        self, planned: PlannedSentence, translation: Translation | None, timings: StageTimings
    ) -> TranslatedSentence:
        """Return the next sentence; `translation` is None if there is nothing to translate."""
        text, alignment = planned.before + planned.after, None
        hypotheses: tuple[TextHypothesis, ...] = ()
        warnings: tuple[TranslationWarning, ...] = ()
        if translation:
            text = planned.before + translation.hypotheses[0].text + planned.after
            hypotheses = tuple(  # links start in the document and end in the text of the sentence
                replace(each, alignment=tuple(shifted(each.alignment, source_by=planned.start, target_by=0)))
                for each in translation.hypotheses
            )
            outermost = translation.sentences[0]  # others are inside it, such as the text of an attribute
            target = outermost.target.shifted(self._num_characters + len(planned.before))
            warnings = tuple(  # the source is a range of the document, the target one of the text of the sentence
                replace(
                    each,
                    source=each.source and each.source.shifted(planned.start),
                    target=each.target and each.target.shifted(len(planned.before)),
                )
                for each in translation.warnings
            )
            alignment = replace(outermost, source=outermost.source.shifted(planned.start), target=target)
        self._num_characters += len(text)
        self.num_sentences += 1
        self.text_s += timings.text_s
        return TranslatedSentence(
            text=text,
            hypotheses=hypotheses,
            sentence=alignment,
            warnings=planned.warnings + warnings,
            model_name=self._model_name,
            model_version=self._model_version,
            timings=timings,
        )
