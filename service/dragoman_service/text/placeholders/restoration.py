"""Restores the inline codes of a translated text unit, and puts translated units back into their message."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.placeholders.accelerators import accelerator_position
from dragoman_service.text.placeholders.counts import HYPHENS
from dragoman_service.text.placeholders.escaping import EntityEscaper, depends_on_following
from dragoman_service.text.placeholders.masking import masked_target, placeholder_ranges
from dragoman_service.text.placeholders.placement import AlignedChunk, Repair, align_chunks
from dragoman_service.text.placeholders.tag_projection import project_tags
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit
from dragoman_service.text.segmentation import Joined

_FIRST_JOINED_SCRIPT = "\u0530"  # Latin, Greek and Cyrillic words do not join the span after them
_NO_SPACE_AFTER = frozenset("([{<\"'„“‚‘«»-/")
_NO_SPACE_BEFORE = frozenset(")]}>\"'”’“»,.;:!?-/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Part of a restored translation: text, or a copied range of the message."""

    text: str = ""
    copied: Span | None = None  # range of the message, written instead of `text`
    source: Span | None = None  # aligned range of the message
    weight: float = 1.0  # weight of the link to `source`
    is_model_text: bool = False  # whether the model wrote `text`; its case may be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A translation with all codes restored."""

    fragments: tuple[Fragment, ...]
    repairs: tuple[Repair, ...] = ()


def restore(unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None) -> Restored:
    """Return the translation of a text unit with its codes restored.

    The links are ordered by target. Without links, the words are assumed to be in the order of the source.
    """
    if links is None and not unit.codes and not unit.escapes and not unit.escaped_forms:
        return Restored(fragments=(Fragment(text=target, is_model_text=True),))
    target = _without_hyphens(unit, target)
    chunks, repairs = align_chunks(unit, target, links)
    writer = _Writer(unit, target, _marks(unit, target, chunks))
    for chunk in project_tags(unit, target, chunks):
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


def _without_hyphens(unit: TextUnit, target: str) -> str:
    # A span does not form a compound with the word before it, nor a count with the word after it, unless they do in the
    # source. The length stays.
    characters: list[str] | None = None
    for code, span in placeholder_ranges(unit, target):
        following, preceding = target[span.end : span.end + 2], target[max(0, span.start - 2) : span.start]
        has_hyphen_after = unit.text[code.end : code.end + 2].lstrip()[:1] in HYPHENS
        if code.is_count and not has_hyphen_after and following[:1] in HYPHENS and following[1:].isalpha():
            characters = characters or list(target)
            characters[span.end] = " "
        has_hyphen_before = unit.text[max(0, code.start - 2) : code.start].rstrip()[-1:] in HYPHENS
        if (
            not has_hyphen_before
            and (code.is_count or unit.text[code.start - 1 : code.start].isspace())
            and preceding[1:] in HYPHENS
            and preceding[:1].isalpha()
        ):
            characters = characters or list(target)
            characters[span.start - 1] = " "
    return "".join(characters) if characters else target


def _marks(unit: TextUnit, target: str, chunks: Sequence[AlignedChunk]) -> list[tuple[int, Span]]:
    # Where to copy the marks of accelerators and the second spaces of the message.
    marks: list[tuple[int, Span]] = []
    accelerators = [code for code in unit.codes if code.kind is CodeKind.ACCELERATOR]
    if accelerators:
        visible, is_copied = masked_target(unit, target), target == unit.text
        for code in accelerators:
            position = code.start if is_copied else accelerator_position(unit.text[code.start], visible)
            marks.append((position, code.source))
    seconds = [code for code in unit.codes if code.kind is CodeKind.SPACE]
    if seconds:
        marks += _second_spaces(unit, seconds, target, chunks)
    return sorted(marks, key=lambda mark: mark[0])


def _second_spaces(
    unit: TextUnit, seconds: Sequence[InlineCode], target: str, chunks: Sequence[AlignedChunk]
) -> Iterator[tuple[int, Span]]:
    # Before the space with the same number, or the same share of the number of spaces.
    ranges = [(code.start, code.end) for code in unit.codes if code.kind is CodeKind.PLACEHOLDER]
    sources = _spaces(unit.text, ranges)
    targets = _spaces(target, [(chunk.start, chunk.end) for chunk in chunks if chunk.code])
    if not targets:
        return
    last = -1
    for code in seconds:
        number = bisect_left(sources, code.start) - 1
        if len(sources) not in {1, len(targets)}:
            number = round(number * (len(targets) - 1) / (len(sources) - 1))
        last = min(max(number, last + 1), len(targets) - 1)
        yield targets[last], code.source


def _spaces(text: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
    # Positions of the spaces between two visible characters outside of ordered ranges.
    spaces: list[int] = []
    position = len(text) - len(text.lstrip())
    for start, end in (*ranges, (len(text.rstrip()), len(text))):
        spaces += (index for index in range(position, start) if text[index] == " ")
        position = max(position, end)
    return spaces


class _Writer:
    def __init__(self, unit: TextUnit, target: str, marks: Sequence[tuple[int, Span]]) -> None:
        self._fragments: list[Fragment] = []
        self._unit = unit
        self._target = target
        self._escaper = EntityEscaper(unit)
        self._position = 0  # in the target: everything before it is written
        self._gap_start = 0
        # Numbers of the first and the last fragment of an `EntityEscaper.ambiguous_tail`, and this tail.
        self._ambiguous: list[tuple[int, int, str]] = []
        self._marks = deque(marks)
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
        """Append the remaining text and return the restored text."""
        self._write_gap(len(self._target))
        self._write_marks(len(self._target))
        for first, last, tail in self._ambiguous:
            if self._is_ended_by_tag(last, tail):
                self._fragments[first] = replace(self._fragments[first], text=tail[0])
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
            self._write_tag(tag)
            self._position = position
        self._write_text(self._position, end)
        self._tags.clear()
        self._position = end

    def _write_tag(self, tag: InlineCode) -> None:
        # The end of a link may depend on its text.
        if tag.target is None or self._target == self._unit.text:
            self._fragments.append(Fragment(copied=tag.source))
        else:
            self._fragments.append(Fragment(text=tag.target))

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
            self._write_marks(chunk.start)
            has_lost_space = self._has_lost_space(chunk, chunk.code)
            before, after = self._target[: chunk.start][-1:], self._target[chunk.end : chunk.end + 1]
            if has_lost_space or (chunk.is_missing and before and not (before.isspace() or before in _NO_SPACE_AFTER)):
                self._fragments.append(Fragment(text=" "))
            if chunk.code.target is None:
                self._fragments.append(Fragment(copied=chunk.code.source, source=source))
            else:
                self._fragments.append(Fragment(text=self._escaper.escaped(chunk.code.target), source=source))
            is_inserted = chunk.is_missing or (has_lost_space and before.isdigit())
            if is_inserted and after and not (after.isspace() or after in _NO_SPACE_BEFORE):
                self._fragments.append(Fragment(text=" "))

    def _has_lost_space(self, chunk: AlignedChunk, code: InlineCode) -> bool:
        # Whether the model dropped the space before a placeholder, after a number or a word.
        previous = self._target[chunk.start - 1 : chunk.start]
        is_joined = previous.isdigit() or (previous.isalpha() and previous < _FIRST_JOINED_SCRIPT)
        return is_joined and self._unit.text[code.start - 1 : code.start].isspace()

    def _write_text(self, start: int, end: int, *, source: Span | None = None, weight: float = 1.0) -> None:
        while self._marks and self._marks[0][0] < end:
            position = max(start, self._marks[0][0])
            self._write_range(start, position, source=source, weight=weight)
            self._write_marks(position)
            start = position
        self._write_range(start, end, source=source, weight=weight)

    def _write_marks(self, position: int) -> None:
        # The marks up to a position of the target.
        while self._marks and self._marks[0][0] <= position:
            self._fragments.append(Fragment(copied=self._marks.popleft()[1]))

    def _write_range(self, start: int, end: int, *, source: Span | None, weight: float) -> None:
        form = -1
        for each in self._escaper.escape(self._target, start, end):
            form = len(self._fragments) if each.is_form else form
            is_model_text = each.copied is None and not each.is_form
            self._fragments.append(
                Fragment(text=each.text, copied=each.copied, source=source, weight=weight, is_model_text=is_model_text)
            )
        if form >= 0 and self._escaper.ambiguous_tail:
            self._ambiguous.append((form, len(self._fragments) - 1, self._escaper.ambiguous_tail))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled(Joined):
    """A joined text and its alignment with the message."""

    links: tuple[AlignmentLink, ...]  # ordered by target


class Assembler:
    """Puts one message together from restored parts and copies everything else.

    A part may be within a range that another part copies.
    """

    def __init__(
        self,
        text: str,
        parts: Sequence[tuple[Span, Sequence[Fragment]]],
        fixed: Sequence[tuple[Span, str | None]] = (),
    ) -> None:
        """Take the message, the ranges of it that are replaced by parts, and those with a fixed translation.

        A range with the translation None is copied, except for the parts inside it.
        """
        replaced = [(span, fragments, number) for number, (span, fragments) in enumerate(parts)]
        for span, target in fixed:
            fragment = Fragment(copied=span) if target is None else Fragment(text=target)
            replaced.append((span, (fragment,), -1))
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
