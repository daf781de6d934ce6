"""HTML and XML as blocks of text: inline tags become pieces of a block, all others end it.

The tokens of HTML are found as the WHATWG standard says (section 13.2.5), by one pass from left to right, because the
translation must be the message byte for byte but for the text: parsers that build a tree (lxml, lexbor, html5lib) do
not say where in the message a node was, so what they write differs from what they read in quotes, entities, case and
white space. Tests compare the trees that lexbor makes of messages and translations. XML is checked by expat first,
which is given no DTD, no entities and no network; what it accepts has the same tokens without HTML's exceptions.

Nothing here recurses, and each character is looked at a bounded number of times.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.blocks import MAX_DEPTH, Block, BlockBuilder, Placeholders
from dragoman_service.text.windowed_search import Check, never_ends

_INLINE = frozenset(
    (
        "a",
        "abbr",
        "acronym",
        "b",
        "bdi",
        "bdo",
        "big",
        "cite",
        "data",
        "del",
        "dfn",
        "em",
        "font",
        "i",
        "img",
        "ins",
        "label",
        "mark",
        "q",
        "ruby",
        "rb",
        "rp",
        "rt",
        "s",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "sup",
        "time",
        "u",
        "wbr",
        "g",
        "x",
        "ph",
        "mrk",
    )
)
"""Elements within a sentence; any other ends it, unless it is not translated and not in `_BLOCK`."""

# fmt: off
_BLOCK = frozenset((
    "address", "article", "aside", "base", "basefont", "bgsound", "blockquote", "body", "br", "caption", "center",
    "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr",
    "html", "legend", "li", "link", "listing", "main", "menu", "meta", "nav", "ol", "optgroup", "option", "p",
    "param", "plaintext", "pre", "search", "section", "summary", "table", "tbody", "td", "textarea", "tfoot", "th",
    "thead", "title", "tr", "ul",
))
# fmt: on
"""Elements of HTML that end a sentence even if they are not translated."""

_OPAQUE = frozenset(("code", "kbd", "samp", "var", "tt", "svg", "math"))
"""Inline elements that stay as they are and stand for a word."""

_SILENT = frozenset(
    (
        "script",
        "style",
        "template",
        "object",
        "iframe",
        "noembed",
        "noframes",
        "xmp",
        "audio",
        "video",
        "canvas",
        "noscript",
    )
)
"""Elements that stay as they are and say nothing."""

_RAW_TEXT = frozenset(("script", "style", "iframe", "noembed", "noframes", "xmp"))
"""Elements of HTML whose content has no tags."""

_ESCAPABLE_RAW_TEXT = frozenset(("textarea", "title"))
_PREFORMATTED = frozenset(("pre", "textarea", "listing"))
_VOID = frozenset(
    (
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
        "basefont",
        "bgsound",
        "frame",
        "keygen",
    )
)
_PLACEHOLDERS = frozenset(("ph", "x"))
"""Empty elements that stand for a word."""

_TEXT_ATTRIBUTES = frozenset(("alt", "title", "placeholder"))

_TAG_START = re.compile(r"</?([A-Za-z][^\s/>]*)")
_XML_TAG_START = re.compile(r"</?([^\s/>]+)")
_ATTRIBUTE = re.compile(
    r"[\s/]*+(?:(?P<name>[^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<unclosed>[\"'])|(?P<bare>[^\s>][^\s>]*+)?))?)?"
)
_RUN = re.compile(
    r"(?P<space>[ \t\n\f\r]+)|(?P<reference>&(?:#[0-9]{1,7}+|#[xX][0-9a-fA-F]{1,6}+|[A-Za-z][A-Za-z0-9]{1,31}+);?)"
)


class MarkupError(ValueError):
    """A text that is no XML."""


@dataclass(frozen=True, slots=True)
class _Tag:
    start: int
    end: int
    name: str
    """In lower case."""
    is_closing: bool = False
    is_empty: bool = False
    """Whether it has neither content nor end tag."""
    attributes: tuple[tuple[str, Span, str], ...] = ()
    """Those that are looked at: name, where the value is, its quote."""
    is_untranslated: bool = False


@dataclass(frozen=True, slots=True)
class _Text:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Copied:
    """A comment, declaration or the like; of a CDATA section, text that stays."""

    start: int
    end: int
    is_text: bool = False


_Token = _Tag | _Text | _Copied


def markup_blocks(text: str, *, is_xml: bool, stand_ins: Placeholders, check: Check = never_ends) -> list[Block]:
    """Return the blocks of a message in the order of their places; those of attributes may lie in another.

    `stand_ins` are those of the message, for elements that are not translated.

    Raises:
        MarkupError: if the message is to be XML and is not, or declares entities, or is nested too deeply.
    """
    if is_xml:
        _check_xml(text, check)
    tokens = list(_tokens(text, is_xml=is_xml, check=check))
    inline = _inline_by_content(text, tokens, check) if is_xml else None
    reader = _Reader(text, is_xml=is_xml, inline=inline, stand_ins=stand_ins, check=check)
    for token in _without_content(tokens, inline):
        check()
        reader.read(token)
    return reader.end()


def _check_xml(text: str, check: Check) -> None:
    """Raise MarkupError unless a text is a well-formed document, or the content of an element."""
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


def _tokens(text: str, *, is_xml: bool, check: Check) -> Iterator[_Token]:
    """Yield the tokens of a message, which add up to it."""
    position = begin = 0
    while (start := text.find("<", position)) >= 0:
        token = _markup_at(text, start, is_xml=is_xml, check=check)
        if token is None:
            position = start + 1
            continue
        if begin < start:
            yield _Text(begin, start)
        yield token
        begin = position = token.end
        if isinstance(token, _Tag) and not token.is_closing and not is_xml:
            if token.name in _RAW_TEXT or token.name in _ESCAPABLE_RAW_TEXT:
                end = _raw_text_end(text, position, token.name)
                if position < end:
                    is_raw = token.name in _RAW_TEXT
                    yield _Copied(position, end) if is_raw else _Text(position, end)
                begin = position = end
            elif token.name == "plaintext":
                break
    if begin < len(text):
        yield _Text(begin, len(text))


def _markup_at(text: str, start: int, *, is_xml: bool, check: Check) -> _Token | None:
    """Return the token that begins with a `<`; None if that is text."""
    check()
    following = text[start + 1 : start + 2]
    if following == "!":
        return _declaration_at(text, start, is_xml=is_xml)
    if following == "?":
        return _Copied(start, _end_of(text, "?>" if is_xml else ">", start + 2))
    match = (_XML_TAG_START if is_xml else _TAG_START).match(text, start)
    if match is None:
        return _Copied(start, _end_of(text, ">", start + 2)) if following == "/" else None
    return _tag_at(text, start, match, is_xml=is_xml, check=check)


def _declaration_at(text: str, start: int, *, is_xml: bool) -> _Copied:
    if text.startswith("<!--", start):
        if not is_xml and (match := re.compile("<!--(-?>)").match(text, start)):
            return _Copied(start, match.end())
        return _Copied(start, _end_of(text, "-->", start + 4))
    if is_xml and text.startswith("<![CDATA[", start):
        return _Copied(start, _end_of(text, "]]>", start + 9), is_text=True)
    return _Copied(start, _end_of(text, ">", start + 2))


def _tag_at(text: str, start: int, match: re.Match[str], *, is_xml: bool, check: Check) -> _Token:
    """Return a tag; one that does not end is copied with all that follows it."""
    name = match[1].lower()
    is_closing = text.startswith("</", start)
    attributes: list[tuple[str, Span, str]] = []
    is_untranslated = False
    position = match.end()
    while not text.startswith(">", position):
        check()
        attribute = _ATTRIBUTE.match(text, position)
        if attribute is None or attribute.end() == position or attribute["unclosed"]:
            return _Copied(start, len(text))
        position = attribute.end()
        own = (attribute["name"] or "").lower()
        group = "double" if attribute["double"] is not None else "single"
        value = attribute[group] or attribute["bare"] or ""
        if own in _TEXT_ATTRIBUTES and value and attribute["bare"] is None:
            span = Span(start=attribute.start(group), end=attribute.end(group))
            attributes.append((own, span, '"' if group == "double" else "'"))
        elif own in {"translate", "its:translate"}:
            is_untranslated = value.lower() == "no"
        elif own == "class":
            is_untranslated = is_untranslated or "notranslate" in value.split()
    is_empty = not is_closing and (
        (text[position - 1] == "/" and (is_xml or name in _PLACEHOLDERS)) or (not is_xml and name in _VOID)
    )
    return _Tag(start, position + 1, name, is_closing, is_empty, tuple(attributes), is_untranslated)


def _end_of(text: str, end: str, start: int) -> int:
    place = text.find(end, start)
    return len(text) if place < 0 else place + len(end)


def _raw_text_end(text: str, start: int, name: str) -> int:
    match = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, start)
    return match.start() if match else len(text)


def _without_content(tokens: Sequence[_Token], inline: frozenset[int] | None) -> Iterator[_Token]:
    """Yield the tokens, elements that are not translated as one; what is never closed goes on to the end.

    Such an element stands for a word where it is within text: `inline` is where those of XML begin, None in HTML.
    """
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not isinstance(token, _Tag) or token.is_closing:
            yield token
            continue
        is_within_text = token.name not in _BLOCK | _SILENT if inline is None else token.start in inline
        is_word = token.name in _OPAQUE or (token.is_untranslated and is_within_text)
        if token.is_empty and token.name in _PLACEHOLDERS:
            yield _Copied(token.start, token.end, is_text=True)
        elif token.is_empty or not (is_word or token.is_untranslated or token.name in _SILENT):
            yield token
        else:
            first, depth = token, 1
            has_text = False
            while index < len(tokens) and depth:
                inner = tokens[index]
                index += 1
                has_text = has_text or not isinstance(inner, _Tag)
                if isinstance(inner, _Tag) and inner.name == first.name and not inner.is_empty:
                    depth += -1 if inner.is_closing else 1
            end = tokens[index - 1].end
            if is_word or first.name in _SILENT:
                yield _Copied(first.start, end, is_text=is_word and has_text)
            else:
                yield _Tag(first.start, end, first.name, is_empty=True)


def _inline_by_content(text: str, tokens: Sequence[_Token], check: Check) -> frozenset[int]:
    """Return where the tags of XML begin that stand within text: their parents hold words beside them."""
    parents: list[int] = [-1]
    has_text: set[int] = set()
    parent_of: list[tuple[int, int]] = []
    for token in tokens:
        check()
        if isinstance(token, _Tag) and token.is_closing:
            parents.pop()
            parent_of.append((token.start, parents[-1]))
        elif isinstance(token, _Tag):
            parent_of.append((token.start, parents[-1]))
            if not token.is_empty:
                parents.append(token.start)
        elif not isinstance(token, _Text):
            has_text.update(parents[-1:] if token.is_text else ())
        elif not text[token.start : token.end].isspace():
            has_text.add(parents[-1])
    inline: set[int] = set()
    for start, parent in sorted(parent_of):
        if parent in has_text or parent in inline:
            inline.add(start)
    return frozenset(inline)


@dataclass(slots=True)
class _Reader:
    """Makes blocks of the tokens of a message."""

    text: str
    is_xml: bool
    inline: frozenset[int] | None
    """Where the inline tags begin; None: their names say it."""

    stand_ins: Placeholders
    check: Check

    _blocks: list[Block] = field(default_factory=list)
    _builder: BlockBuilder | None = None
    _start: int = 0
    _end: int = 0
    _num_preformatted: int = 0

    def read(self, token: _Token) -> None:
        """Take the next token."""
        if isinstance(token, _Text):
            self._read_text(token)
        elif isinstance(token, _Copied):
            span = Span(start=token.start, end=token.end)
            if token.is_text:
                self._begin(token.start).add_placeholder(span)
                self._end = token.end
            elif self._builder is not None:
                self._builder.add_point(span)
                self._end = token.end
        else:
            self._read_tag(token)

    def end(self) -> list[Block]:
        """Return all blocks."""
        self._end_block()
        return sorted(self._blocks, key=lambda block: (block.source.start, -block.source.end))

    def _read_tag(self, tag: _Tag) -> None:
        span = Span(start=tag.start, end=tag.end)
        is_inline = tag.name in _INLINE if self.inline is None else tag.start in self.inline
        if is_inline:
            builder = self._begin(tag.start)
            if tag.is_closing:
                builder.close_tag(tag.name, span)
            elif tag.is_empty:
                builder.add_point(span)
            else:
                builder.open_tag(tag.name, span)
            self._end = tag.end
        else:
            self._end_block()
            if tag.name in _PREFORMATTED and not self.is_xml:
                self._num_preformatted = max(0, self._num_preformatted + (-1 if tag.is_closing else 1))
        for _, value, quote in tag.attributes:
            builder = BlockBuilder(
                start=value.start, stand_ins=self.stand_ins, escapes=("&<" if self.is_xml else "&") + quote
            )
            self._add_text(builder, value, keeps_space=True)
            self._add_block(builder, value)

    def _read_text(self, token: _Text) -> None:
        if self._builder is None:
            blank = len(self.text[token.start : token.end]) - len(
                self.text[token.start : token.end].lstrip(" \t\n\f\r")
            )
            token = _Text(token.start + blank, token.end)
            if token.start == token.end:
                return
        keeps_space = self._num_preformatted > 0
        self._add_text(self._begin(token.start), Span(start=token.start, end=token.end), keeps_space=keeps_space)
        self._end = token.end

    def _begin(self, start: int) -> BlockBuilder:
        if self._builder is None:
            self._builder = BlockBuilder(start=start, stand_ins=self.stand_ins, escapes="&<>")
            self._start = start
        return self._builder

    def _end_block(self) -> None:
        if self._builder is not None:
            self._add_block(self._builder, Span(start=self._start, end=self._end))
            self._builder = None

    def _add_block(self, builder: BlockBuilder, source: Span) -> None:
        block = builder.build(source)
        if any(map(str.isalnum, block.text)):
            self._blocks.append(block)

    def _add_text(self, builder: BlockBuilder, span: Span, *, keeps_space: bool) -> None:
        """Add text of the message, character references resolved, white space made one space each."""
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
                    builder.add_spelling(character, source)
                else:
                    builder.add_placeholder(source)
            position = match.end()
        builder.add_text(text[position : span.end])


def innermost_last(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yield blocks that are in no other, each with those inside it; all are ordered by their places."""
    group: list[Block] = []
    for block in blocks:
        if group and block.source.start >= group[0].source.end:
            yield group
            group = []
        group.append(block)
    if group:
        yield group
