"""Text units: text as the model sees it, with inline codes for everything that differs from the message.

A text unit is text whose sentences belong together, such as a paragraph (the term of XLIFF and the Okapi Framework).
Its inline codes record where it differs from the message:

    message   Hello <b>{name}</b>, fish &amp; chips
    unit      Hello 2013, fish & chips
    codes           opening <b> at 6, placeholder 2013 for {name}, closing </b> at 10, & escaped as &amp;

Placeholders are the tokens that the model was trained to copy (`Tokenization.placeholders`). Other models get years:
they copy years more reliably than any other token, in every script and position (docs/guides/protected-text.md).
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
from dragoman_service.text.segmentation import Check, never_ends

# Years that differ in several digits. The other years of two centuries and longer numbers follow.
_YEARS = (2013, 1947, 1985, 1962, 2006, 1978, 1991, 2019, 1954, 1936, 2002, 1969)

# Nesting depth of tags. Deeper tags are kept, but not paired.
MAX_DEPTH = 256

_NUMBER = re.compile(r"\d{4,}")
_ICU_PLURAL = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|selectordinal)\b")
_NUMBER_SIZES = (4, 6)  # digits of years, and of the numbers after them


class CodeKind(enum.Enum):
    """Kind of an inline code."""

    PLACEHOLDER = enum.auto()  # replaces a protected span, which must occur once in the translation
    OPENING = enum.auto()  # tag that marks the text up to its partner; tags have no text in the unit
    CLOSING = enum.auto()
    STANDALONE = enum.auto()  # tag or comment without partner: a position without text
    ESCAPED = enum.auto()  # one character that the message writes differently: `&amp;`, a line break with indentation


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineCode:
    """Range of a text unit and its counterpart in the message."""

    start: int
    end: int
    source: Span
    kind: CodeKind
    partner: int = -1  # index of the partner tag among the codes of the unit; -1 if the unit does not contain it
    target: str | None = None  # text in the translation; None copies `source`

    @property
    def span(self) -> Span:
        """Range in the text of the unit."""
        return Span(start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextUnit:
    """Text as the model sees it and its origin in the message; or a range of such a text."""

    text: str
    start: int  # position of the first character in the message, if no code precedes it
    source: Span  # range in the message, including the codes at its edges
    codes: tuple[InlineCode, ...]  # ordered and disjoint
    escapes: str = ""  # characters that are markup here and are escaped in the translation

    def part(self, span: Span, check: Check = never_ends) -> "TextUnit":
        """Return a range of the text with the codes inside it.

        A tag at an edge is outside, unless its partner is inside.
        """
        first = bisect_left(self.codes, span.start, key=lambda code: code.end)
        last = bisect_right(self.codes, span.end, key=lambda code: code.start)
        while first < last and not self._is_inside(self.codes[first], span):
            check()
            first += 1
        while first < last and not self._is_inside(self.codes[last - 1], span):
            check()
            last -= 1
        codes = []
        for code in islice(self.codes, first, last):
            check()
            partner = code.partner - first if first <= code.partner < last else -1
            codes.append(replace(code, start=code.start - span.start, end=code.end - span.start, partner=partner))
        start, end = self._source_position(span.start), self._source_position(span.end, before_tags=True)
        source = Span(start=start, end=max(start, end))
        if codes:
            source = Span(start=min(start, codes[0].source.start), end=max(end, codes[-1].source.end))
        return replace(self, text=self.text[span.start : span.end], start=start, source=source, codes=tuple(codes))

    def source_of(self, span: Span) -> Span:
        """Return the position of a range in the message, without the tags at its edges."""
        start = self._source_position(span.start)
        return Span(start=start, end=max(start, self._source_position(span.end, before_tags=True)))

    def shifted(self, by: int) -> "TextUnit":
        """Return the same unit of a message that has `by` more characters in front."""
        codes = tuple(replace(code, source=code.source.shifted(by)) for code in self.codes)
        return replace(self, start=self.start + by, source=self.source.shifted(by), codes=codes)

    def outside_codes(self, span: Span) -> Span:
        """Return a range of the text with its edges moved out of placeholders."""
        return Span(start=self._outside_code(span.start), end=self._outside_code(span.end))

    @property
    def has_placeholders(self) -> bool:
        """True if the unit contains protected spans."""
        return any(code.kind is CodeKind.PLACEHOLDER for code in self.codes)

    @property
    def placeholders(self) -> list[str]:
        """Placeholder of each protected span."""
        codes = (code for code in self.codes if code.kind is CodeKind.PLACEHOLDER)
        return [self.text[code.start : code.end].strip() for code in codes]

    @property
    def needs_alignment(self) -> bool:
        """True if restoring the codes takes a word alignment."""
        return any(code.kind is not CodeKind.ESCAPED for code in self.codes)

    @property
    def has_words(self) -> bool:
        """True if a letter is outside all placeholders."""
        begin = 0
        for code in self.codes:
            if code.kind is CodeKind.PLACEHOLDER:
                if any(map(str.isalpha, self.text[begin : code.start])):
                    return True
                begin = code.end
        return any(map(str.isalpha, self.text[begin:]))

    def _source_position(self, index: int, *, before_tags: bool = False) -> int:
        if before_tags:
            number = bisect_left(self.codes, index, key=lambda code: code.start)
        else:
            number = bisect_right(self.codes, index, key=lambda code: code.end)
        if number == 0:
            return self.start + index
        last = self.codes[number - 1]
        return last.source.end + max(0, index - last.end)

    def _outside_code(self, index: int) -> int:
        number = bisect_left(self.codes, index, key=lambda code: code.start)
        if not number or self.codes[number - 1].end <= index:
            return index
        code = self.codes[number - 1]
        return code.start if self.text[index : code.end].strip() else code.end

    def _is_inside(self, code: InlineCode, span: Span) -> bool:
        if code.start < code.end:
            return span.start <= code.start and code.end <= span.end
        if span.start < code.start < span.end:
            return True
        return code.partner >= 0 and span.start < self.codes[code.partner].start < span.end


def plain_unit(text: str) -> TextUnit:
    """Return a plain text as one unit without codes."""
    return TextUnit(text=text, start=0, source=Span(start=0, end=len(text)), codes=())


class TextUnitBuilder:
    """Builds a text unit from left to right."""

    def __init__(self, *, start: int, placeholders: Iterable[str], escapes: str = "") -> None:
        """Begin at position `start` of the message."""
        self._start = start
        self._placeholders = iter(placeholders)
        self._escapes = escapes
        self._texts: list[str] = []
        self._length = 0
        self._codes: list[InlineCode] = []
        self._open: list[tuple[str, int]] = []  # name and code index of each open tag
        self._num_open: Counter[str] = Counter()

    @property
    def ends_in_space(self) -> bool:
        """True if the text is empty or ends in white space."""
        return not self._texts or self._texts[-1][-1].isspace()

    def add_text(self, text: str) -> None:
        """Add text that the message contains unchanged."""
        if text[:1].isalnum():
            self._separate_from_placeholder()
        self._append(text)

    def add_escaped(self, text: str, source: Span) -> None:
        """Add a character that the message writes differently."""
        if text.isalnum():
            self._separate_from_placeholder()
        self._add(text, source, CodeKind.ESCAPED)

    def add_placeholder(self, source: Span, *, target: str | None = None) -> None:
        """Add a placeholder, separated from adjacent letters and digits."""
        is_joined = bool(self._texts) and self._texts[-1][-1].isalnum()
        self._add(" " * is_joined + next(self._placeholders), source, CodeKind.PLACEHOLDER, target=target)

    def add_span(self, protected: ProtectedSpan, text: str, source: Span) -> None:
        """Add a protected span; tags that mark text become codes without text."""
        if protected.kind is not ProtectedKind.TAG or is_placeholder_tag(text):
            self.add_placeholder(source, target=protected.target)
        elif text.startswith("</"):
            self.close_tag(tag_name(text), source)
        elif text.endswith("/>"):
            self.add_standalone(source)
        else:
            self.open_tag(tag_name(text), source)

    def add_standalone(self, source: Span) -> None:
        """Add a code that has a position, but no text."""
        self._add("", source, CodeKind.STANDALONE)

    def open_tag(self, name: str, source: Span) -> None:
        """Add a tag that marks the text after it."""
        self._open.append((name, len(self._codes) if len(self._open) < MAX_DEPTH else -1))
        self._num_open[name] += 1
        self._add("", source, CodeKind.STANDALONE)  # until it is closed

    def close_tag(self, name: str, source: Span) -> None:
        """Add an end tag. Unmatched tags stay without partner."""
        self._add("", source, CodeKind.STANDALONE)
        if not self._num_open[name]:
            return
        opened, first = "", -1
        while opened != name:
            opened, first = self._open.pop()
            self._num_open[opened] -= 1
        last = len(self._codes) - 1
        if first < 0:
            return
        self._codes[first] = replace(self._codes[first], kind=CodeKind.OPENING, partner=last)
        self._codes[last] = replace(self._codes[last], kind=CodeKind.CLOSING, partner=first)

    def add_space(self, source: Span) -> None:
        """Add white space of the message as one space, or to the preceding code if that ends in space."""
        last = self._codes[-1] if self._codes and self._codes[-1].end == self._length else None
        if last is not None and self.ends_in_space:
            self._codes[-1] = replace(last, source=Span(start=last.source.start, end=source.end))
        elif self._texts:
            self._add(" ", source, CodeKind.ESCAPED)

    def copy(self, unit: TextUnit, index: int, position: int, moved: dict[int, int]) -> int:
        """Add a code of another unit and the text from `position` to it; return the end of the code there.

        `moved` gets its new index by the old one.
        """
        code = unit.codes[index]
        self.add_text(unit.text[position : code.start])
        moved[index] = len(self._codes)
        if code.kind is CodeKind.PLACEHOLDER:
            self.add_placeholder(code.source, target=code.target)
        elif code.kind is CodeKind.ESCAPED:
            self.add_escaped(unit.text[code.start : code.end], code.source)
        else:
            self._add("", code.source, code.kind)
        return code.end

    def build(self, source: Span) -> TextUnit:
        """Return the unit, which is at `source` in the message."""
        text = "".join(self._texts)
        return TextUnit(text=text, start=self._start, source=source, codes=tuple(self._codes), escapes=self._escapes)

    def _separate_from_placeholder(self) -> None:
        # If only tags follow the last placeholder, add a space to it. The tags move behind the space.
        for index in range(len(self._codes) - 1, -1, -1):
            code = self._codes[index]
            if code.end < self._length or code.kind is CodeKind.ESCAPED:
                return
            if code.kind is CodeKind.PLACEHOLDER:
                self._codes[index] = replace(code, end=code.end + 1)
                tags = self._codes[index + 1 :]
                self._codes[index + 1 :] = [replace(tag, start=tag.end + 1, end=tag.end + 1) for tag in tags]
                self._append(" ")
                return

    def _append(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._length += len(text)

    def _add(self, text: str, source: Span, kind: CodeKind, *, target: str | None = None) -> None:
        end = self._length + len(text)
        self._codes.append(InlineCode(start=self._length, end=end, source=source, kind=kind, target=target))
        self._append(text)


class Placeholders:
    """Endless sequence of placeholders that do not occur in a message: trained ones, then years, then other numbers.

    Each unit of the message iterates from the first one on.
    """

    def __init__(self, message: str, trained: Sequence[str] = (), check: Check = never_ends) -> None:
        taken = _numbers_in(message, check)
        others: Iterable[int] = chain(range(2029, 1899, -1), count(100_003, 7))
        numbers = map(str, chain(_YEARS, (year for year in others if year not in _YEARS)))
        free = (placeholder for placeholder in trained if placeholder not in message)
        self._candidates = chain(free, (number for number in numbers if number not in taken))
        self._known: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for index in count():
            if index == len(self._known):
                self._known.append(next(self._candidates))
            yield self._known[index]


def _numbers_in(text: str, check: Check) -> set[str]:
    # All runs of digits that are as long as a placeholder, also those within longer runs.
    numbers: set[str] = set()
    for run in _NUMBER.finditer(text):
        for start in range(*run.span()):
            check()
            numbers.update(text[start : start + size] for size in _NUMBER_SIZES if start + size <= run.end())
    return numbers


def protected_units(
    unit: TextUnit,
    protection: Protection,
    placeholders: Placeholders,
    *,
    is_plural: bool = False,
    check: Check = never_ends,
) -> list[TextUnit]:
    """Return a unit with placeholders for its protected spans, and the units inside those spans.

    Tags of plain texts become codes. A span that a tag divides is not protected. In the messages of a plural, `#`
    is the number.
    """
    spans = protection.find(unit.text, check)
    if is_plural:
        spans = with_number_signs(spans, unit.text, check)
    units = [_with_placeholders(unit, spans, placeholders, check)] if spans else [unit]
    for protected in spans:
        check()
        has_number = is_plural or _ICU_PLURAL.match(unit.text, protected.span.start) is not None
        for message in protected.messages:
            escapes = "".join(dict.fromkeys(unit.escapes + "{}" + "#" * has_number))
            inner = replace(unit.part(message, check), escapes=escapes)
            units += protected_units(inner, protection, placeholders, is_plural=has_number, check=check)
    return units


def _with_placeholders(
    unit: TextUnit, spans: Sequence[ProtectedSpan], placeholders: Placeholders, check: Check
) -> TextUnit:
    builder = TextUnitBuilder(start=unit.start, placeholders=placeholders, escapes=unit.escapes)
    moved: dict[int, int] = {}
    codes, index, position = unit.codes, 0, 0
    for protected in spans:
        span = protected.span
        check()
        while index < len(codes) and codes[index].end <= span.start:
            check()
            position = builder.copy(unit, index, position, moved)
            index += 1
        last = index
        while last < len(codes) and codes[last].start < span.end and codes[last].kind is CodeKind.ESCAPED:
            last += 1
        if last < len(codes) and codes[last].start < span.end and not protected.messages:
            continue
        while last < len(codes) and codes[last].start < span.end:
            last += 1
        builder.add_text(unit.text[position : span.start])
        builder.add_span(protected, unit.text[span.start : span.end], unit.source_of(span))
        index, position = last, span.end
    for number in range(index, len(codes)):
        check()
        position = builder.copy(unit, number, position, moved)
    builder.add_text(unit.text[position:])
    built = builder.build(unit.source)
    old = {new: index for index, new in moved.items()}
    result = []
    for new, code in enumerate(built.codes):
        check()
        result.append(replace(code, partner=moved.get(codes[old[new]].partner, -1)) if new in old else code)
    return replace(built, codes=tuple(result))
