"""Texts in parts that are decoded as segments, and documents in pieces that are translated one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from service.datatypes import Segment, Span, StageTimings, TextHypothesis, TranslatedSentence, Translation
from service.text.alignment import shifted

MAX_COPIED_CHARACTERS = 65_536
"""What one piece of a document copies at most on either side of its sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of a text that is decoded as one segment."""

    span: Span
    segment: Segment
    sentence_index: int
    """Parts of one sentence follow each other and share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """What is decoded of one text."""

    text: str
    parts: tuple[TextPart, ...]

    @property
    def spans(self) -> list[Span]:
        """Where the parts are in the text."""
        return [part.span for part in self.parts]

    def sentences(self) -> list[list[TextPart]]:
        """Return the parts of each sentence."""
        return [list(parts) for _, parts in groupby(self.parts, key=lambda part: part.sentence_index)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPiece:
    """One sentence of a document with what is copied around it, or something between sentences."""

    before: str
    """Copied ahead of the sentence; all there is if there is none."""

    plan: TextPlan | None = None
    """The sentence alone, spans counted from its first character; None: nothing to translate."""

    start: int = 0
    """Where the sentence begins in the document."""

    after: str = ""
    """Copied behind the sentence, if it is the last."""

    @property
    def segments(self) -> list[Segment]:
        """What is decoded for it."""
        return [part.segment for part in self.plan.parts] if self.plan else []


def document_pieces(text: str, sentences: Iterable[Sequence[TextPart]], *, separator: str) -> Iterator[DocumentPiece]:
    """Yield a document in pieces, at least one, each as soon as it is known whether it is the last.

    Reads `sentences`, the parts of each, as far as needed; sets `separator` between two that touch.
    """
    last: DocumentPiece | None = None
    copied_to = 0
    for parts in sentences:
        if last:
            yield last
        start, end = parts[0].span.start, parts[-1].span.end
        chunks = _chunks(text, copied_to, start)
        yield from (DocumentPiece(before=chunk) for chunk in chunks[:-1])
        before = chunks[-1] or (separator if last else "")
        own = tuple(replace(part, span=part.span.shifted(-start), sentence_index=0) for part in parts)
        last = DocumentPiece(before=before, plan=TextPlan(text=text[start:end], parts=own), start=start)
        copied_to = end
    *chunks, after = _chunks(text, copied_to, len(text))
    if last:
        yield last if chunks else replace(last, after=after)
    yield from (DocumentPiece(before=chunk) for chunk in chunks)
    if chunks or not last:
        yield DocumentPiece(before=after)


def _chunks(text: str, start: int, end: int) -> list[str]:
    """Return a range of a text in pieces of at most `MAX_COPIED_CHARACTERS`; one if it is empty."""
    return [
        text[begin : min(begin + MAX_COPIED_CHARACTERS, end)]
        for begin in range(start, max(end, start + 1), MAX_COPIED_CHARACTERS)
    ]


class TranslatedDocument:
    """The translation of a document so far; counts its characters, so that each sentence gets its place."""

    def __init__(self, *, model_name: str, model_version: str) -> None:
        self._model_name = model_name
        self._model_version = model_version
        self._num_characters = 0
        self.num_sentences = 0
        self.text_s = 0.0
        """Text work so far."""

    def next_sentence(
        self, piece: DocumentPiece, translation: Translation | None, timings: StageTimings
    ) -> TranslatedSentence:
        """Return the next sentence, and count it; `translation` is None if the piece has nothing to translate."""
        text, place = piece.before + piece.after, None
        hypotheses: tuple[TextHypothesis, ...] = ()
        if translation:
            text = piece.before + translation.hypotheses[0].text + piece.after
            hypotheses = tuple(  # sources of links are in the document; their targets stay in the sentence's own text
                replace(one, alignment=tuple(shifted(one.alignment, source_by=piece.start, target_by=0)))
                for one in translation.hypotheses
            )
            (own,) = translation.sentences
            target = own.target.shifted(self._num_characters + len(piece.before))
            place = replace(own, source=own.source.shifted(piece.start), target=target)
        self._num_characters += len(text)
        self.num_sentences += 1
        self.text_s += timings.text_s
        return TranslatedSentence(
            text=text,
            hypotheses=hypotheses,
            sentence=place,
            warnings=translation.warnings if translation else (),
            model_name=self._model_name,
            model_version=self._model_version,
            timings=timings,
        )
