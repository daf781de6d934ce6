"""HTML and XML as text units: inline tags become codes of a unit, all other tags end it.

XML is validated by expat first, without DTD, entities or network. Nothing here recurses, and each character is read a
bounded number of times. Tests compare the trees that lexbor builds from messages and translations.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from xml.parsers import expat

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.markup_tokens import (
    PLACEHOLDER_TAGS,
    Copied,
    Superscript,
    Tag,
    Text,
    Token,
    is_known,
    tokenize,
)
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.superscripts import SUPERSCRIPT, superscript_codes, superscript_forms
from dragoman_service.text.placeholders.text_units import MAX_DEPTH, TextUnit, TextUnitBuilder
from dragoman_service.text.segmentation import Check, never_ends

# fmt: off
# Elements within a sentence. Any other element ends it, unless it is untranslated and not in `_BLOCK`.
_INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "img", "ins",
    "label", "mark", "q", "ruby", "rb", "rp", "rt", "s", "small", "span", "strike", "strong", "sub", "sup", "time",
    "u", "wbr", "g", "x", "ph", "mrk",
))

# Elements of HTML that end a sentence even if they are untranslated.
_BLOCK = frozenset((
    "address", "article", "aside", "base", "basefont", "bgsound", "blockquote", "body", "br", "caption", "center",
    "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr",
    "html", "legend", "li", "link", "listing", "main", "menu", "meta", "nav", "ol", "optgroup", "option", "p",
    "param", "plaintext", "pre", "search", "section", "summary", "table", "tbody", "td", "textarea", "tfoot", "th",
    "thead", "title", "tr", "ul",
))

# Untranslated elements that replace a word, and those that do not.
_OPAQUE = frozenset(("code", "kbd", "samp", "var", "tt", "svg", "math"))
_SILENT = frozenset((
    "script", "style", "template", "object", "iframe", "noembed", "noframes", "xmp", "audio", "video", "canvas",
    "noscript",
))

_PREFORMATTED = frozenset(("pre", "textarea", "listing"))
_NOTE = re.compile(r"\[?\d{1,3}\]?|[*†‡]")  # the mark of a note, in `<sup>` after a word
_SCRIPTS = frozenset(("sub", "sup"))
# fmt: on

_RUN = re.compile(
    r"(?P<space>[ \t\n\f\r]+)|(?P<reference>&(?:#[0-9]{1,7}+|#[xX][0-9a-fA-F]{1,6}+|[A-Za-z][A-Za-z0-9]{1,31}+);?)"
)


class MarkupError(ValueError):
    """A text is not valid XML."""


def markup_units(text: str, *, is_xml: bool, placeholders: Placeholders, check: Check = never_ends) -> list[TextUnit]:
    """Return the text units of a message by position. A unit of an attribute may be within another unit.

    Raises:
        MarkupError: if the message is invalid as XML, declares entities, or is nested too deeply.
    """
    if is_xml:
        _check_xml(text, check)
    tokens = list(tokenize(text, is_xml=is_xml, check=check))
    forms = superscript_forms(text, check)
    if forms or "</sup>" in text:
        tokens = list(_with_superscripts(text, tokens, check))
    inline = _inline_by_content(text, tokens, check) if is_xml else None
    reader = _Reader(text, is_xml=is_xml, inline=inline, forms=forms, placeholders=placeholders, check=check)
    for token in _collapsed(text, tokens, inline):
        check()
        reader.read(token)
    return reader.end()


def _check_xml(text: str, check: Check) -> None:
    # The text may be a document or the content of an element.
    depth = 0

    def start(*_: object) -> None:
        nonlocal depth
        check()
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise MarkupError(f"nested more than {MAX_DEPTH} deep")

    def end(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def declare(_name: str, _system: str | None, _public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset:
            raise MarkupError("with declarations in its document type")

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, declare
    is_document = re.match(r"\s*<(?:\?xml\s|!DOCTYPE)", text) is not None
    try:
        parser.Parse((text if is_document else f"<text>{text}</text>").encode(), True)
    except expat.ExpatError as error:
        column = error.offset - (len("<text>") if error.lineno == 1 and not is_document else 0)
        what = expat.ErrorString(error.code)
        raise MarkupError(f"not well-formed: {what} in line {error.lineno}, column {max(column, 0)}") from error


def _collapsed(text: str, tokens: Sequence[Token], inline: frozenset[int] | None) -> Iterator[Token]:
    # Each untranslated element becomes one token, up to the end of the message if it is never closed. Within text it
    # replaces a word. An empty placeholder replaces a word as well.
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not isinstance(token, Tag) or token.is_closing:
            yield token
            continue
        is_within_text = token.name not in _BLOCK | _SILENT if inline is None else token.start in inline
        is_word = token.name in _OPAQUE or (token.is_untranslated and is_within_text)
        end_tag = index + 1 if not token.is_empty and _closes(token, tokens[index : index + 1]) else index
        if (token.is_empty or end_tag > index) and not token.is_untranslated:
            end = tokens[end_tag - 1].end
            is_free = is_within_text and not token.attributes and not _touches_word(text, token.start, end)
            if token.name in PLACEHOLDER_TAGS or (is_free and not is_known(token.name)):
                yield Copied(token.start, end, is_word=True)
                index = end_tag
                continue
        if token.is_empty and token.is_untranslated and (is_word or token.name in PLACEHOLDER_TAGS):
            yield Copied(token.start, token.end, is_word=True)
        elif token.is_empty or not (is_word or token.is_untranslated or token.name in _SILENT):
            yield token
        else:
            depth, has_text = 1, False
            while index < len(tokens) and depth:
                inner = tokens[index]
                index += 1
                has_text = has_text or not isinstance(inner, Tag)
                if isinstance(inner, Tag) and inner.name == token.name and not inner.is_empty:
                    depth += -1 if inner.is_closing else 1
            end = tokens[index - 1].end
            if is_word or token.name in _SILENT:
                yield Copied(token.start, end, is_word=is_word and (has_text or token.name not in _OPAQUE))
            else:
                yield Tag(token.start, end, token.name, is_empty=True)


def _closes(tag: Tag, following: Sequence[Token]) -> bool:
    return any(isinstance(token, Tag) and token.is_closing and token.name == tag.name for token in following)


def _with_superscripts(text: str, tokens: Sequence[Token], check: Check) -> Iterator[Token]:
    # The digits of a unit or a formula, and the mark of a note, with their tags, become one token.
    index = 0
    while index < len(tokens):
        check()
        token = tokens[index]
        index += 1
        if isinstance(token, Tag) and token.name in _SCRIPTS and _closes(token, tokens[index + 1 : index + 2]):
            content, end = tokens[index], tokens[index + 1].end
            script: Superscript | Copied | None = None
            if match := SUPERSCRIPT.match(text, token.start):
                script = Superscript(token.start, end, tuple(superscript_codes(match)))
            elif token.name == "sup" and _NOTE.fullmatch(text, content.start, content.end):
                script = Copied(token.start, end, is_word=True)
            if script is not None:
                yield script
                index += 2
                continue
        yield token


def _touches_word(text: str, start: int, end: int) -> bool:
    return text[max(0, start - 1) : start].isalnum() or text[end : end + 1].isalnum()


def _inline_by_content(text: str, tokens: Sequence[Token], check: Check) -> frozenset[int]:
    # Starts of the XML tags within text: their parent elements contain words.
    parents: list[int] = [-1]
    has_text: set[int] = set()
    parent_of: list[tuple[int, int]] = []
    for token in tokens:
        check()
        if isinstance(token, Tag) and token.is_closing:
            parents.pop()
            parent_of.append((token.start, parents[-1]))
        elif isinstance(token, Tag):
            parent_of.append((token.start, parents[-1]))
            if not token.is_empty:
                parents.append(token.start)
        elif isinstance(token, Copied):
            has_text.update(parents[-1:] if token.is_word else ())
        elif not text[token.start : token.end].isspace():
            has_text.add(parents[-1])
    inline: set[int] = set()
    for start, parent in sorted(parent_of):
        if parent in has_text or parent in inline:
            inline.add(start)
    return frozenset(inline)


@dataclass(slots=True)
class _Reader:
    text: str
    is_xml: bool
    inline: frozenset[int] | None  # starts of the inline tags; None decides by their names
    forms: tuple[tuple[str, str], ...]  # of superscripts
    placeholders: Placeholders
    check: Check

    _units: list[TextUnit] = field(default_factory=list)
    _builder: TextUnitBuilder | None = None
    _start: int = 0
    _end: int = 0
    _num_preformatted: int = 0

    def read(self, token: Token) -> None:
        """Process the next token."""
        if isinstance(token, Text):
            self._read_text(token)
        elif isinstance(token, Superscript):
            for span, character in token.codes:
                self._begin(token.start).add_escaped(character, span)
            self._end = token.end
        elif isinstance(token, Copied):
            span = Span(start=token.start, end=token.end)
            if token.is_word:
                self._begin(token.start).add_placeholder(span)
                self._end = token.end
            elif self._builder is not None:
                self._builder.add_standalone(span)
                self._end = token.end
        else:
            self._read_tag(token)

    def end(self) -> list[TextUnit]:
        """Return all units."""
        self._end_unit()
        return sorted(self._units, key=lambda unit: (unit.source.start, -unit.source.end))

    def _read_tag(self, tag: Tag) -> None:
        span = Span(start=tag.start, end=tag.end)
        is_inline = tag.name in _INLINE if self.inline is None else tag.start in self.inline
        if is_inline:
            builder = self._begin(tag.start)
            if tag.is_closing:
                builder.close_tag(tag.name, span)
            elif tag.is_empty:
                builder.add_standalone(span)
            else:
                builder.open_tag(tag.name, span)
            self._end = tag.end
        else:
            self._end_unit()
            if tag.name in _PREFORMATTED and not self.is_xml:
                self._num_preformatted = max(0, self._num_preformatted + (-1 if tag.is_closing else 1))
        for value, quote in tag.attributes:
            escapes = ("&<" if self.is_xml else "&") + quote
            builder = TextUnitBuilder(start=value.start, placeholders=self.placeholders, escapes=escapes)
            self._add_text(builder, value, keeps_space=True)
            self._add_unit(builder, value)

    def _read_text(self, token: Text) -> None:
        if self._builder is None:
            text = self.text[token.start : token.end].lstrip(" \t\n\f\r")
            if not text:
                return
            token = Text(token.end - len(text), token.end)
        keeps_space = self._num_preformatted > 0
        self._add_text(self._begin(token.start), Span(start=token.start, end=token.end), keeps_space=keeps_space)
        self._end = token.end

    def _begin(self, start: int) -> TextUnitBuilder:
        if self._builder is None:
            self._builder = TextUnitBuilder(start=start, placeholders=self.placeholders, escapes="&<>")
            self._start = start
        return self._builder

    def _end_unit(self) -> None:
        if self._builder is not None:
            self._add_unit(self._builder, Span(start=self._start, end=self._end))
            self._builder = None

    def _add_unit(self, builder: TextUnitBuilder, source: Span) -> None:
        unit = builder.build(source)
        if any(map(str.isalnum, unit.text)):
            self._units.append(replace(unit, escaped_forms=self.forms) if self.forms else unit)

    def _add_text(self, builder: TextUnitBuilder, span: Span, *, keeps_space: bool) -> None:
        # Resolves character references, and collapses white space.
        text, position = self.text, span.start
        for match in _RUN.finditer(text, span.start, span.end):
            source = Span(start=match.start(), end=match.end())
            if match["space"] is not None:
                is_doubled = position == match.start() and builder.ends_in_space
                if keeps_space or (match[0] == " " and not is_doubled):
                    continue
                self.check()
                builder.add_text(text[position : match.start()])
                builder.add_space(source)
            else:
                self.check()
                character = html.unescape(match[0])
                if character == match[0]:
                    continue
                builder.add_text(text[position : match.start()])
                if len(character) == 1:
                    builder.add_escaped(character, source)
                else:
                    builder.add_placeholder(source)
            position = match.end()
        builder.add_text(text[position : span.end])


def nested_groups(units: Iterable[TextUnit]) -> Iterator[list[TextUnit]]:
    """Yield each outermost unit with the units inside it; `units` are ordered by position."""
    group: list[TextUnit] = []
    for unit in units:
        if group and unit.source.start >= group[0].source.end:
            yield group
            group = []
        group.append(unit)
    if group:
        yield group
