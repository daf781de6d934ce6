"""What of a text is decoded, and what is copied: of a text as a whole, and of a document piece by piece."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from service.datatypes import Segment, Span

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


def document_pieces(text: str, sentences: Iterable[Sequence[TextPart]], *, filler: str) -> Iterator[DocumentPiece]:
    """Yield a document in pieces, at least one, each as soon as it is known whether it is the last.

    Args:
        text: the document.
        sentences: the parts of each, in order; read as far as needed.
        filler: set between two sentences that touch; see `filler_between`.
    """
    last: DocumentPiece | None = None
    copied_to = 0
    for parts in sentences:
        if last:
            yield last
        start, end = parts[0].span.start, parts[-1].span.end
        chunks = _chunks(text, copied_to, start)
        yield from (DocumentPiece(before=chunk) for chunk in chunks[:-1])
        before = chunks[-1] or (filler if last else "")
        last = DocumentPiece(before=before, plan=_sentence_plan(text[start:end], parts), start=start)
        copied_to = end
    *chunks, after = _chunks(text, copied_to, len(text))
    if last:
        yield last if chunks else replace(last, after=after)
    yield from (DocumentPiece(before=chunk) for chunk in chunks)
    if chunks or not last:
        yield DocumentPiece(before=after)


def _sentence_plan(sentence: str, parts: Sequence[TextPart]) -> TextPlan:
    start = parts[0].span.start
    return TextPlan(
        text=sentence,
        parts=tuple(
            replace(part, span=Span(start=part.span.start - start, end=part.span.end - start), sentence_index=0)
            for part in parts
        ),
    )


def _chunks(text: str, start: int, end: int) -> list[str]:
    """Return a range of a text in pieces of at most `MAX_COPIED_CHARACTERS`; one if it is empty."""
    return [
        text[begin : min(begin + MAX_COPIED_CHARACTERS, end)]
        for begin in range(start, max(end, start + 1), MAX_COPIED_CHARACTERS)
    ]
