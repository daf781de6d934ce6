"""Text units: text as the model sees it, with inline codes for everything that differs from the message.

A text unit is text whose sentences belong together, such as a paragraph (the term of XLIFF and the Okapi Framework).
Its inline codes record where it differs from the message:

    message   Hello <b>{name}</b>, fish &amp; chips
    unit      Hello 2013, fish & chips
    codes           opening <b> at 6, placeholder 2013 for {name}, closing </b> at 10, & escaped as &amp;

Placeholders are the tokens that the model was trained to copy (`Tokenization.placeholders`). Other models get years:
they copy years more reliably than any other token, in every script and position (docs/guides/protected-text.md).

In a plain text, a line break such as `<br>` and a `|` between plural forms end a sentence. Backslash escapes, the marks
of accelerators and the second of two spaces are codes as well.
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
from dragoman_service.text.invariants import violations
from dragoman_service.text.placeholders.accelerators import find_accelerator, find_doubled_ampersands
from dragoman_service.text.placeholders.apostrophes import find_apostrophes
from dragoman_service.text.placeholders.backslashes import find_escapes
from dragoman_service.text.placeholders.blocks import is_apart
from dragoman_service.text.placeholders.bracket_tags import bracket_tag_name, paired_tags
from dragoman_service.text.placeholders.counts import is_count
from dragoman_service.text.placeholders.patterns import (
    ProtectedSpan,
    Protection,
    is_placeholder_tag,
    tag_name,
    with_number_signs,
)
from dragoman_service.text.segmentation import Check, never_ends

MASK = violations.MASK
"""Character that replaces each character of a placeholder."""

# Years that differ in several digits. The other years of two centuries and longer numbers follow.
_YEARS = (2013, 1947, 1985, 1962, 2006, 1978, 1991, 2019, 1954, 1936, 2002, 1969)

# Nesting depth of tags. Deeper tags are kept, but not paired.
MAX_DEPTH = 256

_NUMBER = re.compile(r"\d{4,}")
_ICU_PLURAL = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|selectordinal)\b")
_NUMBER_SIZES = (4, 6)  # digits of years, and of the numbers after them
_TWO_SPACES = re.compile(r"(?<=\S) {2}(?=\S)")
_COUNT_CONTEXT = 40  # characters after a span that decide whether it is a count

# Tags of a plain text that end a sentence. Other names of HTML, such as `link`, are also names of components.
# fmt: off
_BREAKS = frozenset((
    "br", "p", "hr", "div", "li", "ul", "ol", "dl", "dt", "dd", "table", "tr", "td", "th", "blockquote", "h1", "h2",
    "h3", "h4", "h5", "h6",
))
_BREAKS_IN_BRACKETS = _BREAKS | {"*", "list", "quote", "center", "left", "right"}
# Tags that may divide a word.
_FORMATTING = frozenset((
    "b", "i", "u", "s", "em", "strong", "small", "big", "sub", "sup", "span", "font", "mark", "del", "ins", "strike",
    "tt", "code", "abbr", "cite", "q",
))
# fmt: on

# Kinds of the tags of blocks.
_BLOCK_KINDS = frozenset((ProtectedKind.BRACES, ProtectedKind.TEMPLATE, ProtectedKind.BRACKETS, ProtectedKind.VARIABLE))

# Priority of spans for trained placeholders, which are few.
_PRIORITIES: dict[ProtectedKind | None, int] = {None: 0, ProtectedKind.IDENTIFIER: 1, ProtectedKind.NUMBER: 2}
_LOWEST_PRIORITY = 3


class CodeKind(enum.Enum):
    """Kind of an inline code."""

    PLACEHOLDER = enum.auto()  # replaces a protected span, which must occur once in the translation
    OPENING = enum.auto()  # tag that marks the text up to its partner; tags have no text in the unit
    CLOSING = enum.auto()
    STANDALONE = enum.auto()  # tag or comment without partner: a position without text
    ESCAPED = enum.auto()  # one character that the message writes differently: `&amp;`, a line break with indentation
    BREAK = enum.auto()  # end of a sentence without text in the unit: `<br>` in plain text, `|` between plural forms
    ACCELERATOR = enum.auto()  # mark before a letter of a label, without text in the unit
    SPACE = enum.auto()  # second of two spaces, without text in the unit


ALIGNED_KINDS = frozenset((CodeKind.OPENING, CodeKind.CLOSING, CodeKind.STANDALONE))
"""Kinds whose place in the translation depends on the word alignment."""

_INSIDE_SPANS = frozenset((CodeKind.ESCAPED, CodeKind.ACCELERATOR, CodeKind.SPACE))  # a protected span may have them


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineCode:
    """Range of a text unit and its counterpart in the message."""

    start: int
    end: int
    source: Span
    kind: CodeKind
    partner: int = -1  # index of the partner tag among the codes of the unit; -1 if the unit does not contain it
    target: str | None = None  # text in the translation; None copies `source`
    is_count: bool = False  # protected span of a number, such as `{n}` before a plural
    priority: int = _LOWEST_PRIORITY  # for trained placeholders; the lowest number comes first

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
    escaped_forms: tuple[tuple[str, str], ...] = ()  # more such characters, and their escaped forms: `'` and `\\'`

    def part(self, span: Span, check: Check = never_ends) -> "TextUnit":
        """Return a range of the text with the codes inside it.

        A tag at an edge is outside, unless its partner is inside. The mark of the first letter is inside.
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
        """True if restoring the codes takes a word alignment.

        A placeholder shows its place itself. If the model loses or repeats one, its words are assumed to be in the
        order of the source.
        """
        return any(code.kind in ALIGNED_KINDS for code in self.codes)

    @property
    def sentence_ends(self) -> list[Span]:
        """Ordered, disjoint and possibly empty ranges of the text at which a sentence ends."""
        ends = dict.fromkeys((code.start, code.end) for code in self.codes if code.kind is CodeKind.BREAK)
        return [Span(start=start, end=end) for start, end in ends]

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
        if code.kind is CodeKind.ACCELERATOR:
            return span.start <= code.start < span.end
        if span.start < code.start < span.end:
            return True
        partner = self.codes[code.partner] if code.partner >= 0 else None
        if code.target is not None or (partner is not None and partner.target is not None):
            is_opening = code.kind is CodeKind.OPENING  # of a link whose end depends on its text
            return code.start == (span.start if is_opening else span.end) and span.start < span.end
        return code.partner >= 0 and span.start < self.codes[code.partner].start < span.end


def plain_unit(
    text: str, *, has_escapes: bool = False, has_accelerators: bool = False, check: Check = never_ends
) -> TextUnit:
    """Return a plain text as one unit.

    Args:
        text: the text.
        has_escapes: whether the model reads the characters of backslash escapes.
        has_accelerators: whether the model reads labels without the marks of accelerators.
        check: called regularly.
    """
    codes = [(span, CodeKind.SPACE, "") for span in _second_spaces(text, check)]
    forms: dict[str, str] = {}
    if has_escapes:
        for span, char in find_escapes(text, check):
            if char != '"':  # models rarely keep quotation marks, so these are protected spans
                codes.append((span, CodeKind.ESCAPED, char))
            forms.setdefault(char, text[span.start : span.end])
        doubled, apostrophe = find_apostrophes(text, check)
        codes += [(span, CodeKind.ESCAPED, "'") for span in doubled]
        if apostrophe:
            forms.setdefault("'", apostrophe)
    if has_accelerators:
        doubled, mark = find_doubled_ampersands(text), find_accelerator(text)
        codes += [(span, CodeKind.ESCAPED, "&") for span in doubled]
        if mark is not None:
            codes.append((mark, CodeKind.ACCELERATOR, ""))
        if doubled or (mark is not None and text[mark.start] == "&"):
            forms["&"] = "&&"
    builder, position = TextUnitBuilder(start=0, placeholders=()), 0
    for span, kind, char in sorted(codes, key=lambda code: code[0].start):
        check()
        builder.add_text(text[position : span.start])
        builder.add_code(char, span, kind)
        position = span.end
    builder.add_text(text[position:])
    return replace(builder.build(Span(start=0, end=len(text))), escaped_forms=tuple(forms.items()))


def _second_spaces(text: str, check: Check) -> Iterator[Span]:
    for match in _TWO_SPACES.finditer(text):
        check()
        yield Span(start=match.start() + 1, end=match.end())


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

    def add_placeholder(self, source: Span, *, target: str | None = None, is_count: bool = False) -> None:
        """Add a placeholder, separated from adjacent letters and digits."""
        is_joined = bool(self._texts) and self._texts[-1][-1].isalnum() and not self._follows_break
        text = " " * is_joined + next(self._placeholders)
        self._add(text, source, CodeKind.PLACEHOLDER, target=target, is_count=is_count)

    def add_span(self, span: "_Accepted", source: Span) -> None:
        """Add a protected span; tags that mark text become codes without text."""
        text = span.text
        if span.ends_sentence:
            self.add_code("", source, CodeKind.BREAK)
        elif span.is_placeholder:
            self.add_placeholder(source, target=span.protected.target, is_count=span.is_count)
        elif span.is_end_tag:
            self.close_tag(span.name, source)
        elif text.endswith("/>"):
            self.add_standalone(source)
        else:
            self.open_tag(span.name, source)

    def add_code(self, text: str, source: Span, kind: CodeKind) -> None:
        """Add a code without partner that the unit shows as `text`."""
        self._add(text, source, kind)

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
            self.add_placeholder(code.source, target=code.target, is_count=code.is_count)
        elif code.kind is CodeKind.ESCAPED:
            self.add_escaped(unit.text[code.start : code.end], code.source)
        else:
            self._add("", code.source, code.kind, target=code.target)
        return code.end

    def build(self, source: Span) -> TextUnit:
        """Return the unit, which is at `source` in the message."""
        text = "".join(self._texts)
        return TextUnit(text=text, start=self._start, source=source, codes=tuple(self._codes), escapes=self._escapes)

    def _separate_from_placeholder(self) -> None:
        # If only tags follow the last placeholder, add a space to it. The tags move behind the space.
        for index in range(len(self._codes) - 1, -1, -1):
            code = self._codes[index]
            if code.end < self._length or code.kind in {CodeKind.ESCAPED, CodeKind.BREAK}:
                return
            if code.kind is CodeKind.PLACEHOLDER:
                self._codes[index] = replace(code, end=code.end + 1)
                tags = self._codes[index + 1 :]
                self._codes[index + 1 :] = [replace(tag, start=tag.end + 1, end=tag.end + 1) for tag in tags]
                self._append(" ")
                return

    @property
    def _follows_break(self) -> bool:
        for code in reversed(self._codes):
            if code.end < self._length or code.start < code.end:
                return False
            if code.kind is CodeKind.BREAK:
                return True
        return False

    def _append(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._length += len(text)

    def _add(
        self, text: str, source: Span, kind: CodeKind, *, target: str | None = None, is_count: bool = False
    ) -> None:
        end = self._length + len(text)
        code = InlineCode(start=self._length, end=end, source=source, kind=kind, target=target, is_count=is_count)
        self._codes.append(code)
        self._append(text)


class Placeholders:
    """Endless sequence of placeholders that do not occur in a message: trained ones, then years, then other numbers.

    Each unit of the message iterates from the first one on.
    """

    def __init__(self, message: str, trained: Sequence[str] = (), check: Check = never_ends) -> None:
        taken = _numbers_in(message, check)
        others: Iterable[int] = chain(range(2029, 1899, -1), count(100_003, 7))
        numbers = map(str, chain(_YEARS, (year for year in others if year not in _YEARS)))
        self._known = [placeholder for placeholder in trained if placeholder not in message]
        self._num_trained = len(self._known)
        self._candidates = (number for number in numbers if number not in taken)

    def __iter__(self) -> Iterator[str]:
        return self._from(0)

    def by_priority(self, priorities: Sequence[int]) -> Iterator[str]:
        """Return a placeholder for each span of a unit, in the order of the spans.

        The spans with the lowest numbers get trained placeholders. Of equal ones, the first spans do.
        """
        order = sorted(range(len(priorities)), key=priorities.__getitem__)
        is_trained = [False] * len(priorities)
        for index in order[: self._num_trained]:
            is_trained[index] = True
        trained, others = self._from(0), self._from(self._num_trained)
        return (next(trained) if is_first else next(others) for is_first in is_trained)

    def _from(self, first: int) -> Iterator[str]:
        for index in count(first):
            while index >= len(self._known):
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
    units = [with_placeholders(unit, spans, placeholders, check)] if spans else [unit]
    for protected in spans:
        check()
        has_number = is_plural or _ICU_PLURAL.match(unit.text, protected.span.start) is not None
        for message in protected.messages:
            is_icu = protected.kind is ProtectedKind.ICU
            escapes = "".join(dict.fromkeys(unit.escapes + "{}" * is_icu + "#" * has_number))
            inner = replace(unit.part(message, check), escapes=escapes)
            units += protected_units(inner, protection, placeholders, is_plural=has_number, check=check)
    return units


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    # A protected span that no tag divides, with the codes `first` to `last` of the unit inside it.
    protected: ProtectedSpan
    text: str
    first: int
    last: int
    is_count: bool
    ends_sentence: bool
    name: str  # of a tag that marks the text up to its end tag; empty: other spans
    is_end_tag: bool
    follows_element: bool  # the tag of a new word directly after the end of another element, as in a menu of links

    @property
    def is_placeholder(self) -> bool:
        if self.ends_sentence or not self.name:
            return not self.ends_sentence
        return is_placeholder_tag(self.text) or (self.text.endswith("/>") and tag_name(self.text).isdigit())


def with_placeholders(
    unit: TextUnit, spans: Sequence[ProtectedSpan], placeholders: Placeholders, check: Check = never_ends
) -> TextUnit:
    """Return a unit with codes for protected spans of its text, which are ordered and disjoint."""
    accepted = list(_accepted(unit, spans, check))
    priorities = _priorities(unit, accepted, check)
    builder = TextUnitBuilder(start=unit.start, placeholders=placeholders.by_priority(priorities), escapes=unit.escapes)
    moved: dict[int, int] = {}
    codes, index, position = unit.codes, 0, 0
    for each in accepted:
        check()
        for number in range(index, each.first):
            check()
            position = builder.copy(unit, number, position, moved)
        span, source = each.protected.span, unit.source_of(each.protected.span)
        builder.add_text(unit.text[position : span.start])
        if each.follows_element:
            builder.add_code("", Span(start=source.start, end=source.start), CodeKind.BREAK)
        builder.add_span(each, source)
        index, position = each.last, span.end
    for number in range(index, len(codes)):
        check()
        position = builder.copy(unit, number, position, moved)
    builder.add_text(unit.text[position:])
    built = builder.build(unit.source)
    old = {new: index for index, new in moved.items()}
    result, ranks = [], iter(priorities)
    for new, code in enumerate(built.codes):
        check()
        partner = moved.get(codes[old[new]].partner, -1) if new in old else code.partner
        priority = next(ranks) if code.kind is CodeKind.PLACEHOLDER else code.priority
        result.append(replace(code, partner=partner, priority=priority))
    return replace(built, codes=tuple(result), escaped_forms=unit.escaped_forms)


def renumbered(unit: TextUnit, placeholders: Placeholders, check: Check = never_ends) -> TextUnit:
    """Return a unit with the first of these placeholders for its spans.

    A sentence has the same placeholders alone and in a longer text, and trained ones in every sentence.
    """
    names = placeholders.by_priority([code.priority for code in unit.codes if code.kind is CodeKind.PLACEHOLDER])
    pieces: list[str] = []
    codes: list[InlineCode] = []
    position = shift = 0
    for code in unit.codes:
        check()
        start = code.start + shift
        if code.kind is CodeKind.PLACEHOLDER:
            own = unit.text[code.start : code.end]
            text = own.replace(own.strip(), next(names), 1)
            pieces += (unit.text[position : code.start], text)
            position = code.end
            shift += len(text) - len(own)
        codes.append(replace(code, start=start, end=code.end + shift))
    return replace(unit, text="".join((*pieces, unit.text[position:])), codes=tuple(codes))


def _accepted(unit: TextUnit, spans: Sequence[ProtectedSpan], check: Check) -> Iterator[_Accepted]:
    codes, index = unit.codes, 0
    closed = -1  # end of the last closing tag
    pairs = paired_tags(
        (unit.text[each.span.start : each.span.end] if each.kind is ProtectedKind.BRACKETS else "" for each in spans),
        check,
    )
    for number, protected in enumerate(spans):
        span = protected.span
        check()
        while index < len(codes) and codes[index].end <= span.start:
            check()
            index += 1
        last = index
        while last < len(codes) and codes[last].start < span.end and codes[last].kind in _INSIDE_SPANS:
            last += 1
        if last < len(codes) and codes[last].start < span.end and not protected.messages:
            continue
        while last < len(codes) and codes[last].start < span.end:
            last += 1
        text = unit.text[span.start : span.end]
        name, is_end_tag = "", pairs.get(number, False)
        ends_sentence, follows_element = protected.kind is ProtectedKind.PLURAL, False
        if protected.messages and protected.kind in _BLOCK_KINDS:
            ends_sentence = is_apart(unit.text, span, protected.messages[-1])
        if protected.kind is ProtectedKind.BRACKETS and not protected.messages:
            name = bracket_tag_name(text)
            ends_sentence = name.lower() in _BREAKS_IN_BRACKETS
            name = name if number in pairs else ""
        if protected.kind is ProtectedKind.TAG:
            name, is_end_tag = tag_name(text), text.startswith("</")
            ends_sentence = _ends_sentence(text, unit.text, span)
            is_part = tag_name(text).lower() in _FORMATTING or is_placeholder_tag(text)
            begins_word = not text.startswith("</") and unit.text[span.end : span.end + 1].isalpha()
            follows_element = closed == span.start and begins_word and not is_part
            closed = span.end if text.startswith("</") and not is_part else -1
        following = unit.text[span.end : span.end + _COUNT_CONTEXT]
        yield _Accepted(
            protected=protected,
            text=text,
            first=index,
            last=last,
            is_count=is_count(text, protected.kind, following),
            ends_sentence=ends_sentence,
            name=name,
            is_end_tag=is_end_tag,
            follows_element=follows_element,
        )
        index = last


def _ends_sentence(tag: str, text: str, span: Span) -> bool:
    # Whether a tag of a plain text ends a sentence: a line break, a block, or an unknown empty element within a word.
    name = tag_name(tag).lower()
    if name in _BREAKS:
        return True
    is_within_word = text[span.start - 1 : span.start].isalpha() and text[span.end : span.end + 1].isalpha()
    return is_within_word and tag.endswith("/>") and name not in _FORMATTING and not is_placeholder_tag(tag)


def _priorities(unit: TextUnit, accepted: Sequence[_Accepted], check: Check) -> list[int]:
    # The priority of each placeholder of the new unit, in order.
    priorities: list[int] = []
    index = 0
    for each in accepted:
        check()
        own = (code for code in unit.codes[index : each.first] if code.kind is CodeKind.PLACEHOLDER)
        priorities += (_LOWEST_PRIORITY for _ in own)
        if each.is_placeholder:
            priorities.append(_PRIORITIES.get(each.protected.kind, _LOWEST_PRIORITY))
        index = each.last
    priorities += (_LOWEST_PRIORITY for code in unit.codes[index:] if code.kind is CodeKind.PLACEHOLDER)
    return priorities


def placeholder_ranges(unit: TextUnit, target: str) -> Iterator[tuple[InlineCode, Span]]:
    """Yield each occurrence of a placeholder of a unit in a translation, in order.

    Models write two numbers without space between them. Part of a longer number is not a placeholder.
    """
    by_text = {
        unit.text[code.start : code.end].strip(): code for code in unit.codes if code.kind is CodeKind.PLACEHOLDER
    }
    if not by_text:
        return
    escaped = [re.escape(placeholder) for placeholder in sorted(by_text, key=lambda placeholder: -len(placeholder))]
    numbers = "|".join(placeholder for placeholder in escaped if placeholder.isdigit()) or "(?!)"
    trained = "|".join(placeholder for placeholder in escaped if not placeholder.isdigit()) or "(?!)"
    for run in re.finditer(rf"(?:{trained})|(?<!\d)(?:{numbers})+(?!\d)", target):
        for match in re.finditer(rf"{trained}|{numbers}", run[0]):
            yield by_text[match[0]], Span(start=run.start() + match.start(), end=run.start() + match.end())


def spans_in_unit(unit: TextUnit, spans: Sequence[Span], check: Check = never_ends) -> list[Span]:
    """Return ranges of the message as ranges of a unit, in order and apart from each other.

    Ranges that overlap a code or an earlier range are left out.
    """
    found: list[Span] = []
    ends = [code.source.end for code in unit.codes]
    for span in sorted(spans, key=lambda each: each.start):
        check()
        number = bisect_right(ends, span.start)
        if number < len(unit.codes) and unit.codes[number].source.start < span.end:
            continue
        before = unit.codes[number - 1] if number else None
        start = before.end + span.start - before.source.end if before else span.start - unit.start
        if not found or found[-1].end <= start:
            found.append(Span(start=start, end=start + span.end - span.start))
    return found


def masked(unit: TextUnit, check: Check = never_ends) -> str:
    """Return the text of a unit with `MASK` for each character of a placeholder."""
    pieces: list[str] = []
    position = 0
    for code in unit.codes:
        check()
        if code.kind is CodeKind.PLACEHOLDER:
            text = unit.text[code.start : code.end]
            placeholder = text.strip()
            pieces += (unit.text[position : code.start], text.replace(placeholder, MASK * len(placeholder), 1))
            position = code.end
    return "".join((*pieces, unit.text[position:]))


def unmasked(unit: TextUnit, text: str, check: Check = never_ends) -> str:
    """Return a text as long as the unit with the placeholders of the unit at their positions."""
    pieces: list[str] = []
    position = 0
    for code in unit.codes:
        check()
        if code.kind is CodeKind.PLACEHOLDER:
            pieces += (text[position : code.start], unit.text[code.start : code.end])
            position = code.end
    return "".join((*pieces, text[position:]))


def masked_target(unit: TextUnit, target: str) -> str:
    """Return a translation of a unit, as the model writes it, with `MASK` for each character of a placeholder."""
    pieces: list[str] = []
    position = 0
    for _, span in placeholder_ranges(unit, target):
        pieces += (target[position : span.start], MASK * (span.end - span.start))
        position = span.end
    return "".join((*pieces, target[position:]))
