"""Text units: text as the model sees it, with inline codes for everything that differs from the message.

A text unit is text whose sentences belong together, such as a paragraph (the term of XLIFF and the Okapi Framework).
Its inline codes record where it differs from the message:

    message   Hello <b>{name}</b>, fish &amp; chips
    unit      Hello 2013, fish & chips
    codes           opening <b> at 6, placeholder 2013 for {name}, closing </b> at 10, & escaped as &amp;

In a plain text, a line break such as `<br>` and a `|` between plural forms end a sentence. Backslash escapes, the marks
of accelerators, the second of two spaces and digits in `<sup>` are codes as well.
"""

import enum
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.accelerators import find_accelerator, find_doubled_ampersands
from dragoman_service.text.placeholders.apostrophes import find_apostrophes
from dragoman_service.text.placeholders.backslashes import find_escapes
from dragoman_service.text.placeholders.superscripts import SUPERSCRIPT, superscript_codes, superscript_forms
from dragoman_service.text.segmentation import Check, never_ends

# Nesting depth of tags. Deeper tags are kept, but not paired.
MAX_DEPTH = 256

_TWO_SPACES = re.compile(r"(?<=\S) {2}(?=\S)")

LOWEST_PRIORITY = 3
"""Priority for trained placeholders of a span that comes last."""


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
    priority: int = LOWEST_PRIORITY  # for trained placeholders; the lowest number comes first

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
    def is_label(self) -> bool:
        """True if the only codes are marks of accelerators."""
        return all(code.kind is CodeKind.ACCELERATOR for code in self.codes)

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


def _is_unknown(_: str) -> bool:
    return False


def plain_unit(
    text: str,
    *,
    has_escapes: bool = False,
    has_accelerators: bool = False,
    is_word: Callable[[str], bool] = _is_unknown,
    has_tags: bool = False,
    check: Check = never_ends,
) -> TextUnit:
    """Return a plain text as one unit.

    Args:
        text: the text.
        has_escapes: whether the model reads the characters of backslash escapes.
        has_accelerators: whether the model reads labels without the marks of accelerators.
        is_word: whether a word is known, see `find_accelerator`.
        has_tags: whether digits in `<sup>` and `<sub>` are read as characters of Unicode.
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
        doubled, mark = find_doubled_ampersands(text), find_accelerator(text, is_word)
        codes += [(span, CodeKind.ESCAPED, "&") for span in doubled]
        if mark is not None:
            codes.append((mark, CodeKind.ACCELERATOR, ""))
        if doubled or (mark is not None and text[mark.start] == "&"):
            forms["&"] = "&&"
    if has_tags and (found := superscript_forms(text, check)):
        forms.update(found)
        codes += _superscripts(text, check)
    builder, position = TextUnitBuilder(start=0, placeholders=()), 0
    for span, kind, char in sorted(codes, key=lambda code: code[0].start):
        check()
        builder.add_text(text[position : span.start])
        builder.add_code(char, span, kind)
        position = span.end
    builder.add_text(text[position:])
    return replace(builder.build(Span(start=0, end=len(text))), escaped_forms=tuple(forms.items()))


def _superscripts(text: str, check: Check) -> Iterator[tuple[Span, CodeKind, str]]:
    for span, char in chain.from_iterable(map(superscript_codes, SUPERSCRIPT.finditer(text))):
        check()
        yield span, CodeKind.ESCAPED, char


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
