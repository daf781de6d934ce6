"""Markdown as text units: marks become codes of a unit; code and links without text become placeholders.

The reader of Markdown files parses the text, in the thread of the text work. It needs no process of its own: its time
and memory are linear in the length of the text, which the server limits, its recursion is limited, it opens nothing,
and `check` stops it at the deadline of the request and if the request is cancelled.

Front matter, code blocks, addresses, titles of links and definitions of links do not become units.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, dropwhile

from dragoman.documents.markdown_reader import (
    MarkdownBlock,
    MarkdownError,
    MarkdownPart,
    Positions,
    markup,
    read_blocks,
)
from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.markup import MarkupError, markup_units
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.superscripts import SUPERSCRIPT, superscript_codes, superscript_forms
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit, TextUnitBuilder
from dragoman_service.text.segmentation import Check, never_ends

MARKDOWN_FORMS = tuple((char, f"\\{char}") for char in "\\`*_[]<&~")
"""Characters that may be markup anywhere in a paragraph, and their escaped forms."""

CELL_FORMS = (*MARKDOWN_FORMS, ("|", "\\|"))
"""The same in a table."""

_TAG = re.compile(r"<(?P<slash>/?)(?P<name>[A-Za-z][A-Za-z0-9-]{0,40}+)")
_PREFORMATTED = re.compile(r"<(?:pre|textarea|listing)\b", re.IGNORECASE)

# fmt: off
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
))
# Elements that replace a word with their content.
_OPAQUE = frozenset(("code", "kbd", "samp", "var", "tt", "svg", "math", "script", "style"))
# fmt: on


def markdown_units(text: str, *, placeholders: Placeholders, check: Check = never_ends) -> list[TextUnit]:
    """Return the text units of a message by position. The unit of an image is within that of its paragraph.

    Raises:
        MarkupError: if the message is nested too deeply, or a paragraph cannot be located in it.
    """
    try:
        units = list(_units(text, placeholders, check))
    except MarkdownError as error:
        raise MarkupError(str(error)) from error
    return sorted(units, key=lambda unit: (unit.source.start, -unit.source.end))


def _units(text: str, placeholders: Placeholders, check: Check) -> Iterator[TextUnit]:
    superscripts = superscript_forms(text, check)
    for block in read_blocks(text, {}, check):
        check()
        if block.kind == "html":
            yield from _html_units(text, block, placeholders, check)
        elif block.is_located:
            forms = CELL_FORMS if block.kind == "cell" else MARKDOWN_FORMS
            yield from _Reader(text, placeholders, (*forms, *superscripts), check).read(block.parts)
        elif any(map(str.isalnum, block.content)):
            line = text.count("\n", 0, block.start) + 1
            raise MarkupError(f"a paragraph that cannot be located in line {line}")


def is_markup_intact(source: str, target: str, check: Check = never_ends) -> bool:
    """Return whether a translation has the blocks and marks of its source; their places in a block may differ."""
    return markup(source, check) == markup(target, check)


def _html_units(text: str, block: MarkdownBlock, placeholders: Placeholders, check: Check) -> Iterator[TextUnit]:
    raw = text[block.start : block.end]
    read = raw.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if read.rstrip() == block.content.rstrip() or block.positions is None:
        units = markup_units(raw, is_xml=False, placeholders=placeholders, check=check)
        yield from (unit.shifted(block.start) for unit in units)
    elif not _PREFORMATTED.search(block.content):  # the prefixes of its lines would be within text
        for unit in markup_units(block.content, is_xml=False, placeholders=placeholders, check=check):
            check()
            yield _moved(unit, block.positions)


def _moved(unit: TextUnit, positions: Positions) -> TextUnit:
    # The unit of a content as unit of the text. Each line break of the content is a code of the unit.
    def moved(span: Span) -> Span:
        return Span(start=positions.place(span.start), end=positions.place(span.end))

    codes = tuple(replace(code, source=moved(code.source)) for code in unit.codes)
    return replace(unit, start=positions.place(unit.start), source=moved(unit.source), codes=codes)


class _Reader:
    def __init__(self, text: str, placeholders: Placeholders, forms: tuple[tuple[str, str], ...], check: Check) -> None:
        self._text = text
        self._placeholders = placeholders
        self._forms = forms
        self._check = check
        self._units: list[TextUnit] = []
        self._labels: dict[int, str] = {}  # by position of the end of a link: label that depends on its text

    def read(self, parts: Sequence[MarkdownPart]) -> list[TextUnit]:
        """Return the unit of the parts and those of the images inside it."""
        parts = list(dropwhile(lambda part: part.kind in ("space", "break"), parts))
        if not parts:
            return []
        builder = TextUnitBuilder(start=parts[0].start, placeholders=self._placeholders)
        parts = list(_with_elements(parts))
        script_end = -1
        for index, part in enumerate(parts):
            self._check()
            if part.kind == "html" and (script := SUPERSCRIPT.match(self._text, part.start)):
                for span, character in superscript_codes(script):
                    builder.add_escaped(character, span)
                script_end = script.end()
            if part.start < script_end:
                continue
            is_word = part.kind == "image" and _is_within_sentence(parts, index)
            self._add(builder, part, is_word=is_word)
        unit = builder.build(Span(start=parts[0].start, end=parts[-1].end))
        if any(map(str.isalnum, unit.text)):
            codes = [
                replace(code, target=f"][{self._labels[code.source.start]}]")
                if code.kind is CodeKind.CLOSING and code.source.start in self._labels
                else code
                for code in unit.codes
            ]
            self._units.append(replace(unit, codes=tuple(codes), escaped_forms=self._forms))
        return self._units

    def _add(self, builder: TextUnitBuilder, part: MarkdownPart, *, is_word: bool) -> None:
        span = Span(start=part.start, end=part.end)
        if part.kind == "image":
            self.read(part.children)
            if is_word:
                builder.add_placeholder(span)
            else:
                builder.add_standalone(span)
        elif part.kind in ("open", "close", "html"):
            self._add_mark(builder, part, span)
        elif part.kind == "text":
            builder.add_text(self._text[part.start : part.end])
        elif part.kind == "space":
            builder.add_space(span)
        elif part.kind == "break":
            _add_break(builder, span)
        elif part.kind == "note":
            builder.add_standalone(span)
        elif part.content == "|":  # between alternatives in a cell
            builder.add_code("", span, CodeKind.BREAK)
        elif len(part.text) == 1:
            builder.add_escaped(part.text, span)
        else:
            builder.add_placeholder(span)

    def _add_mark(self, builder: TextUnitBuilder, part: MarkdownPart, span: Span) -> None:
        if part.kind == "html":
            _add_tag(builder, part.content, span)
        elif part.kind == "open":
            builder.open_tag(part.name, span)
        else:
            if part.label is not None:
                self._labels[part.start] = part.label
            builder.close_tag(part.name, span)


def _is_within_sentence(parts: Sequence[MarkdownPart], index: int) -> bool:
    # Whether an image is between words and separated from them, as in `Press ![the button](b.png) to save`.
    before, after = (parts[other] if 0 <= other < len(parts) else None for other in (index - 1, index + 1))
    if before is None or after is None or before.kind != "text" or after.kind != "text":
        return False
    is_between_words = before.text.rstrip()[-1:].isalnum() and any(map(str.isalnum, after.text))
    return is_between_words and before.text[-1].isspace() and not after.text[0].isalnum()


def _with_elements(parts: Sequence[MarkdownPart]) -> Iterator[MarkdownPart]:
    # Each untranslated HTML element becomes one part, if it is closed.
    ends: dict[str, list[int]] = {}  # of the untranslated elements: indices of their end tags, in reverse order
    for index in range(len(parts) - 1, -1, -1):
        tag = _TAG.match(parts[index].content) if parts[index].kind == "html" else None
        if tag and tag["slash"] and tag["name"].lower() in _OPAQUE:
            ends.setdefault(tag["name"].lower(), []).append(index)
    num_marks = list(accumulate((part.kind in ("open", "close") for part in parts), initial=0))
    index = 0
    while index < len(parts):
        part = parts[index]
        index += 1
        tag = _TAG.match(part.content) if part.kind == "html" else None
        waiting = ends.get(tag["name"].lower(), []) if tag and not tag["slash"] else []
        while waiting and waiting[-1] < index:
            waiting.pop()
        if not waiting:
            yield part
            continue
        end = waiting.pop()
        if num_marks[index] < num_marks[end]:  # marks inside keep their pairs
            yield part
            continue
        yield replace(part, kind="code", end=parts[end].end)
        index = end + 1


def _add_tag(builder: TextUnitBuilder, tag: str, span: Span) -> None:
    match = _TAG.match(tag)
    name = match["name"].lower() if match else ""
    if name == "br":
        _add_break(builder, span)
    elif not match or name in _VOID or tag.endswith("/>"):
        builder.add_standalone(span)
    elif match["slash"]:
        builder.close_tag(f"<{name}>", span)
    else:
        builder.open_tag(f"<{name}>", span)


def _add_break(builder: TextUnitBuilder, span: Span) -> None:
    # A space, at which a sentence ends. If sentences are not split, words on both sides stay separate.
    builder.add_space(span)
    builder.add_code("", Span(start=span.end, end=span.end), CodeKind.BREAK)
