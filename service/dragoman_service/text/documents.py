"""Texts in parts that are decoded as segments, and documents in pieces that are translated one after the other."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dragoman_service.datatypes import Segment, Span, StageTimings, TextHypothesis, TranslatedSentence, Translation
from dragoman_service.text.alignment import shifted
from dragoman_service.text.placeholders.blocks import Block
from dragoman_service.text.segmentation import join

MAX_COPIED_CHARACTERS = 65_536
"""What one piece of a document copies at most on either side of its sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of a text that is decoded as one segment."""

    span: Span
    segment: Segment
    sentence_index: int
    """Parts of one sentence follow each other and share it."""

    block: Block | None = None
    """What the model sees of it, if that is not what stands in the text."""

    def shifted(self, by: int) -> "TextPart":
        """Return the same part of a text that has `by` more characters in front."""
        return replace(self, span=self.span.shifted(by), block=self.block.shifted(by) if self.block else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedText:
    """A term where there is nothing else to translate, and its translation."""

    span: Span
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """What is decoded of one text."""

    text: str
    parts: tuple[TextPart, ...]
    """In order; one with a block may hold others, such as the text of an attribute."""

    fixed: tuple[FixedText, ...] = ()
    """What is neither decoded nor copied."""

    @property
    def is_plain(self) -> bool:
        """Whether the model sees the text as it is."""
        return not self.fixed and all(part.block is None for part in self.parts)

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

    @property
    def num_block_pieces(self) -> int:
        """Tags, placeholders and spellings that are put back into its translation."""
        return sum(len(part.block.pieces) for part in self.plan.parts if part.block) if self.plan else 0


def document_pieces(
    text: str, sentences: Iterable[Sequence[TextPart]], *, separator: str, fixed: deque[FixedText] | None = None
) -> Iterator[DocumentPiece]:
    """Yield a document in pieces, at least one, each as soon as it is known whether it is the last.

    Reads `sentences`, the parts of each, as far as needed; sets `separator` between two that touch. `fixed` holds what
    has a translation of its own ahead of the sentence read last.
    """
    fixed = deque() if fixed is None else fixed
    last: DocumentPiece | None = None
    copied_to = 0
    for parts in sentences:
        if last:
            yield last
        start, end = parts[0].span.start, max(part.span.end for part in parts)
        chunks = _chunks(text, copied_to, start, fixed)
        yield from (DocumentPiece(before=chunk) for chunk in chunks[:-1])
        before = chunks[-1] or (separator if last else "")
        first = parts[0].sentence_index
        own = tuple(replace(part.shifted(-start), sentence_index=part.sentence_index - first) for part in parts)
        plan = TextPlan(text=text[start:end], parts=own, fixed=tuple(_taken(fixed, start, end)))
        last = DocumentPiece(before=before, plan=plan, start=start)
        copied_to = end
    *chunks, after = _chunks(text, copied_to, len(text), fixed)
    if last:
        yield last if chunks else replace(last, after=after)
    yield from (DocumentPiece(before=chunk) for chunk in chunks)
    if chunks or not last:
        yield DocumentPiece(before=after)


def _chunks(text: str, start: int, end: int, fixed: deque[FixedText]) -> list[str]:
    """Return a range of a text in pieces of at most `MAX_COPIED_CHARACTERS`; one if it is empty. Uses up `fixed`."""
    piece = text[start:end]
    own = _taken(fixed, start, end)
    if own:
        piece = join(piece, [one.span for one in own], [one.target for one in own]).text
    return [
        piece[begin : begin + MAX_COPIED_CHARACTERS] for begin in range(0, max(len(piece), 1), MAX_COPIED_CHARACTERS)
    ]


def _taken(fixed: deque[FixedText], start: int, end: int) -> list[FixedText]:
    """Take what ends before a place of a text; its own places count from `start`."""
    own = []
    while fixed and fixed[0].span.end <= end:
        one = fixed.popleft()
        own.append(replace(one, span=one.span.shifted(-start)))
    return own


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
            own = translation.sentences[0]  # others are inside it, such as the text of an attribute
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
