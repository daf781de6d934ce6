"""Put protected spans, tags and spellings back into a translation, and the translations into their message."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.placeholders.blocks import Block, Piece, Role
from dragoman_service.text.placeholders.escaping import EntityEscaper, is_open_ended
from dragoman_service.text.placeholders.placement import AlignedChunk, Repair, find_cells
from dragoman_service.text.placeholders.tag_projection import arrange
from dragoman_service.text.segmentation import Joined

_NO_SPACE_AFTER = frozenset("([{<\"'„“‚‘«»-/")
_NO_SPACE_BEFORE = frozenset(")]}>\"'”’“»,.;:!?-/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A piece of a restored translation."""

    text: str = ""
    raw: Span | None = None
    """A range of the message to be copied instead of `text`."""

    source: Span | None = None
    """What in the message it comes from; None: nothing."""

    weight: float = 1.0
    """Of the link between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A translation with everything in its place."""

    items: tuple[Item, ...]
    repairs: tuple[Repair, ...]


def restore(block: Block, target: str, links: Sequence[AlignmentLink] | None) -> Restored:
    """Return the translation of a block with its pieces put back.

    `links` say which piece of `target` comes from which piece of the block's text, ordered by target; None: not
    known, and words are taken to be in the order of the source.
    """
    if links is None and not block.pieces and not block.escapes:
        return Restored(items=(Item(text=target),), repairs=())
    cells, repairs = find_cells(block, target, links)
    writer = _Writer(block, target)
    for cell in arrange(block, cells):
        writer.add(cell)
    writer.end()
    return Restored(items=tuple(writer.items), repairs=tuple(repairs))


def forced_prefix(block: Block, target: str, links: Sequence[AlignmentLink] | None) -> str | None:
    """Return the start of a translation up to the last missing stand-in, with all of them at their places.

    Empty if none is missing but some came twice; None if there is nothing to repair.
    """
    cells, repairs = find_cells(block, target, links)
    if not repairs:
        return None
    places = [index for index, cell in enumerate(cells) if cell.is_missing]
    text, position = "", 0
    for cell in cells[: places[-1] + 1] if places else ():
        text += target[position : cell.start]
        if cell.is_missing and cell.piece is not None:
            stand_in = block.text[cell.piece.start : cell.piece.end].strip()
            text = text.rstrip() + " " * bool(text.strip()) + stand_in
        text += "" if cell.is_removed else target[cell.start : cell.end]
        position = cell.end
    return text


class _Writer:
    """Writes a translation item by item."""

    def __init__(self, block: Block, target: str) -> None:
        self.items: list[Item] = []
        self._block = block
        self._target = target
        self._spellings = EntityEscaper(block)
        self._position = 0
        """How much of the target is written."""
        self._gap_start = 0
        self._in_doubt: list[tuple[int, str]] = []
        """Items whose last characters depend on what follows them, and these (`EntityEscaper.tail_in_doubt`)."""
        self._tags: list[int] = []
        """Met since the last cell."""

    def add(self, cell: AlignedChunk | int) -> None:
        """Write the next cell; or remember a tag, by its index, until it is known what it stands beside."""
        if isinstance(cell, int):
            self._tags.append(cell)
            return
        self._write_gap(cell.start)
        self._write_cell(cell)
        self._position = cell.end

    def end(self) -> None:
        """Write what is left."""
        self._write_gap(len(self._target))
        for index, tail in self._in_doubt:
            if self._is_cut_off_by_tag(index, tail):
                item = self.items[index]
                text = item.text.removesuffix(self._spellings.escaped(tail)) + tail
                self.items[index] = replace(item, text=text)

    def _is_cut_off_by_tag(self, index: int, tail: str) -> bool:
        """Whether a tag follows before the characters that an item ends in could mean anything."""
        for following in range(index + 1, len(self.items)):
            item = self.items[following]
            if item.raw is not None:
                return item.source is None
            tail += item.text
            if not is_open_ended(tail):
                return False
        return False

    def _write_gap(self, end: int) -> None:
        """Write what is between two cells: white space, each tag at the place in it where it was in the source."""
        self._gap_start = self._position
        for piece in (self._block.pieces[index] for index in self._tags):
            place = self._place_in_gap(piece, end)
            self._write_text(self._position, place)
            self.items.append(Item(raw=piece.source))
            self._position = place
        self._write_text(self._position, end)
        self._tags.clear()
        self._position = end

    def _place_in_gap(self, tag: Piece, end: int) -> int:
        text, begin = self._block.text, self._position
        before = text[max(0, tag.start - (end - self._gap_start)) : tag.start]
        num_spaces = len(before) - len(before.rstrip())
        if text[tag.start : tag.start + 1].isspace():
            return max(begin, min(self._gap_start + num_spaces, end))
        return begin if tag.role is Role.CLOSING and not num_spaces else end

    def _write_cell(self, cell: AlignedChunk) -> None:
        source = self._block.source_of(cell.source)
        if cell.piece is None:
            self._write_text(cell.start, cell.end, source=source, weight=cell.weight)
        elif not cell.is_removed:
            is_missing = cell.is_missing or self._is_run_together(cell)
            before, after = self._target[: cell.start][-1:], self._target[cell.end : cell.end + 1]
            if is_missing and before and not (before.isspace() or before in _NO_SPACE_AFTER):
                self.items.append(Item(text=" "))
            if cell.piece.target is None:
                self.items.append(Item(raw=cell.piece.source, source=source))
            else:
                self.items.append(Item(text=self._spellings.escaped(cell.piece.target), source=source))
            if is_missing and after and not (after.isspace() or after in _NO_SPACE_BEFORE):
                self.items.append(Item(text=" "))

    def _is_run_together(self, cell: AlignedChunk) -> bool:
        """Whether a stand-in follows another directly, but not in the source."""
        start = cell.piece.start if cell.piece else 0
        return self._target[: cell.start][-1:].isdigit() and self._block.text[start - 1 : start].isspace()

    def _write_text(self, start: int, end: int, *, source: Span | None = None, weight: float = 1.0) -> None:
        """Write a range of the target, in the spelling of the source where it has one."""
        for text, raw in self._spellings.spelled(self._target, start, end):
            self.items.append(Item(text=text, raw=raw, source=source, weight=weight))
        if start < end and self._spellings.tail_in_doubt:
            self._in_doubt.append((len(self.items) - 1, self._spellings.tail_in_doubt))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled(Joined):
    """A text put together again, and what in it comes from where."""

    links: tuple[AlignmentLink, ...]
    """Ordered by target."""


class Assembler:
    """Puts a message together from its restored parts; everything else is copied.

    A part may lie within another, in a range that the other copies.
    """

    def __init__(self, text: str, fixed: Sequence[tuple[Span, str]], *, separator: str) -> None:
        """Take the message and what in it is replaced; `separator` is set between two parts that touch."""
        self._text = text
        self._fixed = [(span, (Item(text=target),)) for span, target in fixed]
        self._separator = separator

    def assemble(self, spans: Sequence[Span], parts: Sequence[Sequence[Item]]) -> Assembled:
        """Return the text; `spans` say where the parts are in the message."""
        numbered = [(span, items, number) for number, (span, items) in enumerate(zip(spans, parts, strict=True))]
        replaced = [*numbered, *((span, items, -1) for span, items in self._fixed)]
        return _Assembly(self._text, replaced, self._separator).run(len(spans))


class _Assembly:
    """One text while it is put together."""

    def __init__(self, text: str, replaced: Sequence[tuple[Span, Sequence[Item], int]], separator: str) -> None:
        self._text = text
        self._separator = separator
        self._replaced = sorted(replaced, key=lambda one: (one[0].start, -one[0].end))
        self._starts = [span.start for span, _, _ in self._replaced]
        self._written: list[str] = []
        self._length = 0
        self._spans: dict[int, Span] = {}
        self._links: list[AlignmentLink] = []
        self._being_written = set[int]()

    def run(self, num_parts: int) -> Assembled:
        self._copy(Span(start=0, end=len(self._text)), separator=self._separator)
        spans = tuple(self._spans[number] for number in range(num_parts))
        links = sorted(self._links, key=lambda link: link.target.start)
        return Assembled(text="".join(self._written), spans=spans, links=tuple(links))

    def _copy(self, span: Span, *, separator: str = "") -> None:
        """Write a range of the message with all that is replaced in it."""
        position = span.start
        index = bisect_left(self._starts, span.start)
        is_first = True
        while index < len(self._replaced) and self._starts[index] < span.end:
            own, items, number = self._replaced[index]
            if own.end > span.end or index in self._being_written:
                index += 1
                continue
            self._write(self._text[position : own.start] or ("" if is_first else separator))
            begin = self._length
            self._being_written.add(index)
            for item in items:
                self._write_item(item)
            self._being_written.remove(index)
            if number >= 0:
                self._spans[number] = Span(start=begin, end=self._length)
            position, is_first = own.end, False
            index = bisect_left(self._starts, own.end, lo=index + 1)
        self._write(self._text[position : span.end])

    def _write_item(self, item: Item) -> None:
        begin = self._length
        if item.raw is None:
            self._write(item.text)
        else:
            self._copy(item.raw)
        if item.source is not None and begin < self._length:
            target = Span(start=begin, end=self._length)
            self._links.append(AlignmentLink(source=item.source, target=target, weight=item.weight))

    def _write(self, text: str) -> None:
        self._written.append(text)
        self._length += len(text)
