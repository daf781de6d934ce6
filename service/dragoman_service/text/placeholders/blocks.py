"""Texts as the model sees them: without markup, with stand-ins for protected spans, and what each piece stands for.

A block is text whose sentences belong together, such as a paragraph. Its pieces say where it differs from the message:

    message   Hello <b>{name}</b>, fish &amp; chips
    block     Hello 2013, fish & chips
    pieces          opening <b> at 6, 2013 stands for {name}, closing </b> at 10, & is spelled &amp;

Stand-ins are the model's own placeholders (`Tokenization.placeholders`) if it was taught to copy such pieces, and then
years: of what no model was taught on purpose they are copied most surely, in any script and at any place in a sentence
(docs/guides/protected-text.md has the figures).
"""

import enum
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.patterns import (
    ProtectedSpan,
    Protection,
    is_placeholder_tag,
    tag_name,
    with_number_signs,
)
from dragoman_service.text.windowed_search import Check, never_ends

_YEARS = (2013, 1947, 1985, 1962, 2006, 1978, 1991, 2019, 1954, 1936, 2002, 1969)
"""Those that differ in several digits come first; the others of two centuries, then longer numbers follow."""

MAX_DEPTH = 256
"""Of tags in each other; those further inside are kept, but not as pairs."""

_NUMBER = re.compile(r"\d{4,}")
_ICU_PLURAL = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|selectordinal)\b")
_NUMBER_SIZES = (4, 6)
"""Digits of years, and of the numbers that come after them."""


class Role(enum.Enum):
    """What a piece of a block is."""

    STAND_IN = enum.auto()
    """Stands for a protected span, which must be in the translation once."""

    OPENING = enum.auto()
    """A tag that marks the text up to its partner; empty in the block, as the next two."""

    CLOSING = enum.auto()
    POINT = enum.auto()
    """A tag or comment without partner: it has a place, but no text."""

    SPELLING = enum.auto()
    """One character that the message spells differently, such as `&amp;` or a line break with its indentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of a block and what it stands for in the message."""

    start: int
    end: int
    source: Span
    role: Role
    partner: int = -1
    """Of a tag: the index of its partner among the pieces of the block; -1: it is elsewhere, or there is none."""

    target: str | None = None
    """What stands in the translation; None: what stands in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Text as the model sees it, and how it came from the message; or a part of such a text."""

    text: str
    start: int
    """Where its first character is in the message, if no piece stands before it."""

    source: Span
    """Where it is in the message, with the pieces at its edges."""

    pieces: tuple[Piece, ...]
    """In order, apart from each other."""

    escapes: str = ""
    """Characters that are markup where it stands, and are escaped in its translation."""

    def part(self, span: Span, check: Check = never_ends) -> "Block":
        """Return a range of the text with the pieces inside it.

        A tag at its edge is outside, unless its partner is inside.
        """
        first = bisect_left(self.pieces, span.start, key=lambda piece: piece.end)
        last = bisect_right(self.pieces, span.end, key=lambda piece: piece.start)
        while first < last and not self._is_inside(self.pieces[first], span):
            check()
            first += 1
        while first < last and not self._is_inside(self.pieces[last - 1], span):
            check()
            last -= 1
        pieces = []
        for piece in islice(self.pieces, first, last):
            check()
            partner = piece.partner - first if first <= piece.partner < last else -1
            own = replace(piece, start=piece.start - span.start, end=piece.end - span.start, partner=partner)
            pieces.append(own)
        start, end = self._position(span.start, after=True), self._position(span.end, after=False)
        source = Span(start=start, end=max(start, end))
        if pieces:
            source = Span(start=min(start, pieces[0].source.start), end=max(end, pieces[-1].source.end))
        return replace(self, text=self.text[span.start : span.end], start=start, source=source, pieces=tuple(pieces))

    def source_of(self, span: Span) -> Span:
        """Return where a range of the text is in the message, without the tags at its edges."""
        start = self._position(span.start, after=True)
        return Span(start=start, end=max(start, self._position(span.end, after=False)))

    def shifted(self, by: int) -> "Block":
        """Return the same block in a message that has `by` more characters in front."""
        pieces = tuple(replace(piece, source=piece.source.shifted(by)) for piece in self.pieces)
        return replace(self, start=self.start + by, source=self.source.shifted(by), pieces=pieces)

    def without_cut_pieces(self, span: Span) -> Span:
        """Return a range of the text whose edges are no longer inside a stand-in."""
        return Span(start=self._out_of_piece(span.start), end=self._out_of_piece(span.end))

    @property
    def has_stand_ins(self) -> bool:
        """Whether anything in it is protected."""
        return any(piece.role is Role.STAND_IN for piece in self.pieces)

    @property
    def stand_ins(self) -> list[str]:
        """What stands for each protected span."""
        pieces = (piece for piece in self.pieces if piece.role is Role.STAND_IN)
        return [self.text[piece.start : piece.end].strip() for piece in pieces]

    @property
    def needs_alignment(self) -> bool:
        """Whether it takes an alignment to put everything back in its place."""
        return any(piece.role is not Role.SPELLING for piece in self.pieces)

    @property
    def has_words(self) -> bool:
        """Whether there is a letter besides the stand-ins."""
        begin = 0
        for piece in self.pieces:
            if piece.role is Role.STAND_IN:
                if any(map(str.isalpha, self.text[begin : piece.start])):
                    return True
                begin = piece.end
        return any(map(str.isalpha, self.text[begin:]))

    def _position(self, index: int, *, after: bool) -> int:
        """Return where a place in the text is in the message: behind the tags that stand there, or before them."""
        pieces = self.pieces
        number = (
            bisect_right(pieces, index, key=lambda piece: piece.end)
            if after
            else bisect_left(pieces, index, key=lambda piece: piece.start)
        )
        if number == 0:
            return self.start + index
        last = pieces[number - 1]
        return last.source.end + max(0, index - last.end)

    def _out_of_piece(self, index: int) -> int:
        number = bisect_left(self.pieces, index, key=lambda piece: piece.start)
        if not number or self.pieces[number - 1].end <= index:
            return index
        piece = self.pieces[number - 1]
        return piece.start if self.text[index : piece.end].strip() else piece.end

    def _is_inside(self, piece: Piece, span: Span) -> bool:
        if piece.start < piece.end:
            return span.start <= piece.start and piece.end <= span.end
        if span.start < piece.start < span.end:
            return True
        return piece.partner >= 0 and span.start < self.pieces[piece.partner].start < span.end


def plain_block(text: str) -> Block:
    """Return a plain text as it is."""
    return Block(text=text, start=0, source=Span(start=0, end=len(text)), pieces=())


class BlockBuilder:
    """Puts a block together from left to right."""

    def __init__(self, *, start: int, stand_ins: Iterable[str], escapes: str = "") -> None:
        """Begin at a place of the message; `stand_ins` are those to take."""
        self._start = start
        self._stand_ins = iter(stand_ins)
        self._escapes = escapes
        self._texts: list[str] = []
        self._length = 0
        self._pieces: list[Piece] = []
        self._open: list[tuple[str, int]] = []
        """Name and piece of each tag that is not closed."""
        self._num_open: Counter[str] = Counter()

    @property
    def ends_in_space(self) -> bool:
        """Whether the text is empty so far, or ends in white space."""
        return not self._texts or self._texts[-1][-1].isspace()

    def add_text(self, text: str) -> None:
        """Add text that stands in the message as it is."""
        if text[:1].isalnum():
            self._part_from_stand_in()
        self._append(text)

    def add_spelling(self, text: str, source: Span) -> None:
        """Add a character that the message spells differently."""
        if text.isalnum():
            self._part_from_stand_in()
        self._add(text, source, Role.SPELLING)

    def add_placeholder(self, source: Span, *, target: str | None = None) -> None:
        """Add a stand-in, apart from letters and digits beside it."""
        is_joined = bool(self._texts) and self._texts[-1][-1].isalnum()
        self._add(" " * is_joined + next(self._stand_ins), source, Role.STAND_IN, target=target)

    def add_span(self, one: ProtectedSpan, text: str, source: Span) -> None:
        """Add a protected span; a tag that marks text is taken out."""
        if one.kind is not ProtectedKind.TAG or is_placeholder_tag(text):
            self.add_placeholder(source, target=one.target)
        elif text.startswith("</"):
            self.close_tag(tag_name(text), source)
        elif text.endswith("/>"):
            self.add_point(source)
        else:
            self.open_tag(tag_name(text), source)

    def add_point(self, source: Span) -> None:
        """Add what has a place, but no text."""
        self._add("", source, Role.POINT)

    def open_tag(self, name: str, source: Span) -> None:
        """Add a tag that marks what follows."""
        self._open.append((name, len(self._pieces) if len(self._open) < MAX_DEPTH else -1))
        self._num_open[name] += 1
        self._add("", source, Role.POINT)  # until it is closed

    def close_tag(self, name: str, source: Span) -> None:
        """Add the end of a tag; those opened since, and one that was never opened, have no partner."""
        self._add("", source, Role.POINT)
        if not self._num_open[name]:
            return
        opened, first = "", -1
        while opened != name:
            opened, first = self._open.pop()
            self._num_open[opened] -= 1
        last = len(self._pieces) - 1
        if first < 0:
            return
        self._pieces[first] = replace(self._pieces[first], role=Role.OPENING, partner=last)
        self._pieces[last] = replace(self._pieces[last], role=Role.CLOSING, partner=first)

    def add_space(self, source: Span) -> None:
        """Add white space of the message as one space; where a piece with or behind one precedes it, to this piece."""
        last = self._pieces[-1] if self._pieces and self._pieces[-1].end == self._length else None
        if last is not None and self.ends_in_space:
            self._pieces[-1] = replace(last, source=Span(start=last.source.start, end=source.end))
        elif self._texts:
            self._add(" ", source, Role.SPELLING)

    def copy(self, block: Block, piece: Piece, position: int, index: int, moved: dict[int, int]) -> int:
        """Add a piece of another block, and the text before it from a position on; return where it ends there.

        Its index among the pieces is noted in `moved`.
        """
        self.add_text(block.text[position : piece.start])
        moved[index] = len(self._pieces)
        text = block.text[piece.start : piece.end]
        if piece.role is Role.STAND_IN:
            self.add_placeholder(piece.source, target=piece.target)
        elif piece.role is Role.SPELLING:
            self.add_spelling(text, piece.source)
        else:
            self._add("", piece.source, piece.role)
        return piece.end

    def build(self, source: Span) -> Block:
        """Return the block, which is at `source` in the message."""
        text = "".join(self._texts)
        return Block(text=text, start=self._start, source=source, pieces=tuple(self._pieces), escapes=self._escapes)

    def _part_from_stand_in(self) -> None:
        """Add a space to a stand-in if nothing but tags follows it so far; they come behind the space."""
        for index in range(len(self._pieces) - 1, -1, -1):
            piece = self._pieces[index]
            if piece.end < self._length or piece.role is Role.SPELLING:
                return
            if piece.role is Role.STAND_IN:
                self._pieces[index] = replace(piece, end=piece.end + 1)
                tags = self._pieces[index + 1 :]
                self._pieces[index + 1 :] = [replace(tag, start=tag.end + 1, end=tag.end + 1) for tag in tags]
                self._append(" ")
                return

    def _append(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._length += len(text)

    def _add(self, text: str, source: Span, role: Role, *, target: str | None = None) -> None:
        end = self._length + len(text)
        self._pieces.append(Piece(start=self._length, end=end, source=source, role=role, target=target))
        self._append(text)


class Placeholders:
    """What may stand for the protected spans of a message, in order: nothing that the message itself has.

    Every block of the message iterates from the first one on.
    """

    def __init__(self, candidates: Iterator[str]) -> None:
        """Take them in order, without end; each is looked up once."""
        self._candidates = candidates
        self._known: list[str] = []

    @classmethod
    def of(cls, text: str, placeholders: Sequence[str] = (), check: Check = never_ends) -> "Placeholders":
        """Return those of a message: pieces that the model was taught to copy, then years, then other numbers."""
        taken = _numbers_in(text, check)
        others: Iterable[int] = chain(range(2029, 1899, -1), count(100_003, 7))
        numbers = map(str, chain(_YEARS, (year for year in others if year not in _YEARS)))
        free = (one for one in placeholders if one not in text)
        return cls(chain(free, (number for number in numbers if number not in taken)))

    def __iter__(self) -> Iterator[str]:
        """Yield all of them from the first one on, without end."""
        for index in count():
            if index == len(self._known):
                self._known.append(next(self._candidates))
            yield self._known[index]


def _numbers_in(text: str, check: Check) -> set[str]:
    """Return all runs of digits in a text that are as long as a stand-in, those within longer ones included."""
    numbers: set[str] = set()
    for run in _NUMBER.finditer(text):
        for start in range(*run.span()):
            check()
            numbers.update(text[start : start + size] for size in _NUMBER_SIZES if start + size <= run.end())
    return numbers


def protected_blocks(
    block: Block,
    protection: Protection,
    stand_ins: Placeholders,
    *,
    is_plural: bool = False,
    check: Check = never_ends,
) -> list[Block]:
    """Return a block with stand-ins for what is protected in it, and the blocks that are inside of those.

    Tags in plain texts are taken out, and what a tag parts is not protected. In the messages of a plural `#` stands for
    the number.
    """
    spans = protection.find(block.text, check)
    if is_plural:
        spans = with_number_signs(spans, block.text, check)
    blocks = [_with_stand_ins(block, spans, stand_ins, check)] if spans else [block]
    for one in spans:
        check()
        has_number = is_plural or _ICU_PLURAL.match(block.text, one.span.start) is not None
        for message in one.messages:
            escapes = "".join(dict.fromkeys(block.escapes + "{}" + "#" * has_number))
            inner = replace(block.part(message, check), escapes=escapes)
            blocks += protected_blocks(inner, protection, stand_ins, is_plural=has_number, check=check)
    return blocks


def _with_stand_ins(block: Block, spans: Sequence[ProtectedSpan], stand_ins: Placeholders, check: Check) -> Block:
    builder = BlockBuilder(start=block.start, stand_ins=stand_ins, escapes=block.escapes)
    moved: dict[int, int] = {}
    pieces, index, position = block.pieces, 0, 0
    for one in spans:
        check()
        while index < len(pieces) and pieces[index].end <= one.span.start:
            check()
            position = builder.copy(block, pieces[index], position, index, moved)
            index += 1
        last = index
        while last < len(pieces) and pieces[last].start < one.span.end and pieces[last].role is Role.SPELLING:
            last += 1
        if last < len(pieces) and pieces[last].start < one.span.end and not one.messages:
            continue
        while last < len(pieces) and pieces[last].start < one.span.end:
            last += 1
        builder.add_text(block.text[position : one.span.start])
        builder.add_span(one, block.text[one.span.start : one.span.end], block.source_of(one.span))
        index, position = last, one.span.end
    for number in range(index, len(pieces)):
        check()
        position = builder.copy(block, pieces[number], position, number, moved)
    builder.add_text(block.text[position:])
    built = builder.build(block.source)
    old = {new: index for index, new in moved.items()}
    own = []
    for new, piece in enumerate(built.pieces):
        check()
        own.append(replace(piece, partner=moved.get(pieces[old[new]].partner, -1)) if new in old else piece)
    return replace(built, pieces=tuple(own))
