"""Restores the inline codes of a translated text unit, and puts translated units back into their message."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.placeholders.escaping import EntityEscaper, depends_on_following
from dragoman_service.text.placeholders.placement import AlignedChunk, Repair, align_chunks
from dragoman_service.text.placeholders.tag_projection import project_tags
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit
from dragoman_service.text.segmentation import Joined

_NO_SPACE_AFTER = frozenset("([{<\"'„“‚‘«»-/")
_NO_SPACE_BEFORE = frozenset(")]}>\"'”’“»,.;:!?-/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Part of a restored translation: text, or a copied range of the message."""

    text: str = ""
    copied: Span | None = None  # range of the message, written instead of `text`
    source: Span | None = None  # aligned range of the message
    weight: float = 1.0  # weight of the link to `source`


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A translation with all codes restored."""

    fragments: tuple[Fragment, ...]
    repairs: tuple[Repair, ...] = ()


def restore(unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None) -> Restored:
    """Return the translation of a text unit with its codes restored.

    The links are ordered by target. Without links, the words are assumed to be in the order of the source.
    """
    if links is None and not unit.codes and not unit.escapes:
        return Restored(fragments=(Fragment(text=target),))
    chunks, repairs = align_chunks(unit, target, links)
    writer = _Writer(unit, target)
    for chunk in project_tags(unit, chunks):
        writer.add(chunk)
    return Restored(fragments=writer.finish(), repairs=tuple(repairs))


def forced_prefix(unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None) -> str | None:
    """Return the start of a translation up to the last missing placeholder, with the missing ones inserted.

    Empty if placeholders are only duplicated; None if nothing needs repair.
    """
    chunks, repairs = align_chunks(unit, target, links)
    if not repairs:
        return None
    missing = [index for index, chunk in enumerate(chunks) if chunk.is_missing]
    text, position = "", 0
    for chunk in chunks[: missing[-1] + 1] if missing else ():
        text += target[position : chunk.start]
        if chunk.is_missing and chunk.code is not None:
            placeholder = unit.text[chunk.code.start : chunk.code.end].strip()
            text = text.rstrip() + " " * bool(text.strip()) + placeholder
        text += "" if chunk.is_removed else target[chunk.start : chunk.end]
        position = chunk.end
    return text


class _Writer:
    def __init__(self, unit: TextUnit, target: str) -> None:
        self._fragments: list[Fragment] = []
        self._unit = unit
        self._target = target
        self._escaper = EntityEscaper(unit)
        self._position = 0  # in the target: everything before it is written
        self._gap_start = 0
        self._ambiguous: list[tuple[int, str]] = []  # fragments with an `EntityEscaper.ambiguous_tail`, and this tail
        self._tags: list[int] = []  # tags since the last chunk

    def add(self, chunk: AlignedChunk | int) -> None:
        """Write the next chunk. A tag, given by its index, is kept until the next chunk shows its neighbours."""
        if isinstance(chunk, int):
            self._tags.append(chunk)
            return
        self._write_gap(chunk.start)
        self._write_chunk(chunk)
        self._position = chunk.end

    def finish(self) -> tuple[Fragment, ...]:
        """Write the rest and return everything."""
        self._write_gap(len(self._target))
        for index, tail in self._ambiguous:
            if self._is_ended_by_tag(index, tail):
                fragment = self._fragments[index]
                text = fragment.text.removesuffix(self._escaper.escaped(tail)) + tail
                self._fragments[index] = replace(fragment, text=text)
        return tuple(self._fragments)

    def _is_ended_by_tag(self, index: int, tail: str) -> bool:
        # Whether a tag follows before the tail could become a character reference or tag.
        for number in range(index + 1, len(self._fragments)):
            following = self._fragments[number]
            if following.copied is not None:
                return following.source is None
            tail += following.text
            if not depends_on_following(tail):
                return False
        return False

    def _write_gap(self, end: int) -> None:
        # White space between two chunks, with each tag on the side of it where the source has it.
        self._gap_start = self._position
        for tag in (self._unit.codes[index] for index in self._tags):
            position = self._position_in_gap(tag, end)
            self._write_text(self._position, position)
            self._fragments.append(Fragment(copied=tag.source))
            self._position = position
        self._write_text(self._position, end)
        self._tags.clear()
        self._position = end

    def _position_in_gap(self, tag: InlineCode, end: int) -> int:
        text, begin = self._unit.text, self._position
        before = text[max(0, tag.start - (end - self._gap_start)) : tag.start]
        num_spaces = len(before) - len(before.rstrip())
        if text[tag.start : tag.start + 1].isspace():
            return max(begin, min(self._gap_start + num_spaces, end))
        return begin if tag.kind is CodeKind.CLOSING and not num_spaces else end

    def _write_chunk(self, chunk: AlignedChunk) -> None:
        source = self._unit.source_of(chunk.source)
        if chunk.code is None:
            self._write_text(chunk.start, chunk.end, source=source, weight=chunk.weight)
        elif not chunk.is_removed:
            is_inserted = chunk.is_missing or self._follows_another_number(chunk, chunk.code)
            before, after = self._target[: chunk.start][-1:], self._target[chunk.end : chunk.end + 1]
            if is_inserted and before and not (before.isspace() or before in _NO_SPACE_AFTER):
                self._fragments.append(Fragment(text=" "))
            if chunk.code.target is None:
                self._fragments.append(Fragment(copied=chunk.code.source, source=source))
            else:
                self._fragments.append(Fragment(text=self._escaper.escaped(chunk.code.target), source=source))
            if is_inserted and after and not (after.isspace() or after in _NO_SPACE_BEFORE):
                self._fragments.append(Fragment(text=" "))

    def _follows_another_number(self, chunk: AlignedChunk, code: InlineCode) -> bool:
        # Whether the model dropped the space between two placeholders.
        return self._target[: chunk.start][-1:].isdigit() and self._unit.text[code.start - 1 : code.start].isspace()

    def _write_text(self, start: int, end: int, *, source: Span | None = None, weight: float = 1.0) -> None:
        for text, copied in self._escaper.escape(self._target, start, end):
            self._fragments.append(Fragment(text=text, copied=copied, source=source, weight=weight))
        if start < end and self._escaper.ambiguous_tail:
            self._ambiguous.append((len(self._fragments) - 1, self._escaper.ambiguous_tail))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled(Joined):
    """A joined text and its alignment with the message."""

    links: tuple[AlignmentLink, ...]  # ordered by target


class Assembler:
    """Puts one message together from restored parts and copies everything else.

    A part may be within a range that another part copies.
    """

    def __init__(
        self, text: str, parts: Sequence[tuple[Span, Sequence[Fragment]]], fixed: Sequence[tuple[Span, str]] = ()
    ) -> None:
        """Take the message, the ranges of it that are replaced by parts, and those with a fixed translation."""
        replaced = [(span, fragments, number) for number, (span, fragments) in enumerate(parts)]
        replaced += [(span, (Fragment(text=target),), -1) for span, target in fixed]
        self._text = text
        self._num_parts = len(parts)
        self._replaced = sorted(replaced, key=lambda entry: (entry[0].start, -entry[0].end))
        self._starts = [span.start for span, _, _ in self._replaced]
        self._written: list[str] = []
        self._length = 0
        self._spans: dict[int, Span] = {}
        self._links: list[AlignmentLink] = []
        self._being_written = set[int]()

    def assemble(self, *, separator: str = "") -> Assembled:
        """Return the text; `separator` is written between two parts that touch."""
        self._copy(Span(start=0, end=len(self._text)), separator=separator)
        spans = tuple(self._spans[number] for number in range(self._num_parts))
        links = sorted(self._links, key=lambda link: link.target.start)
        return Assembled(text="".join(self._written), spans=spans, links=tuple(links))

    def _copy(self, span: Span, *, separator: str = "") -> None:
        position = span.start
        index = bisect_left(self._starts, span.start)
        is_first = True
        while index < len(self._replaced) and self._starts[index] < span.end:
            part_span, fragments, number = self._replaced[index]
            if part_span.end > span.end or index in self._being_written:
                index += 1
                continue
            self._write(self._text[position : part_span.start] or ("" if is_first else separator))
            begin = self._length
            self._being_written.add(index)
            for fragment in fragments:
                self._write_fragment(fragment)
            self._being_written.remove(index)
            if number >= 0:
                self._spans[number] = Span(start=begin, end=self._length)
            position, is_first = part_span.end, False
            index = bisect_left(self._starts, part_span.end, lo=index + 1)
        self._write(self._text[position : span.end])

    def _write_fragment(self, fragment: Fragment) -> None:
        begin = self._length
        if fragment.copied is None:
            self._write(fragment.text)
        else:
            self._copy(fragment.copied)
        if fragment.source is not None and begin < self._length:
            target = Span(start=begin, end=self._length)
            self._links.append(AlignmentLink(source=fragment.source, target=target, weight=fragment.weight))

    def _write(self, text: str) -> None:
        self._written.append(text)
        self._length += len(text)
