"""Tokens of HTML and XML: tags, text, and markup that is copied.

HTML is tokenized by the WHATWG standard (section 13.2.5) in one pass, because the translation must equal the message
byte for byte except for the text. Parsers that build a tree (lxml, lexbor, html5lib) do not report the position of a
node, so their output differs from the input in quotes, entities, case and white space. Valid XML has the same tokens
without the exceptions of HTML.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

# fmt: off
_RAW_TEXT = frozenset(("script", "style", "iframe", "noembed", "noframes", "xmp"))  # HTML without tags in the content
_ESCAPABLE_RAW_TEXT = frozenset(("textarea", "title"))
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
    "basefont", "bgsound", "frame", "keygen",
))
PLACEHOLDER_TAGS = frozenset(("ph", "x", "bx", "ex", "it", "bpt", "ept", "ut"))  # empty elements that replace a word

# Elements of HTML. An empty element with another name is a placeholder if no word touches it.
_HTML = frozenset((
    "a", "abbr", "acronym", "address", "applet", "area", "article", "aside", "audio", "b", "base", "basefont", "bdi",
    "bdo", "bgsound", "big", "blink", "blockquote", "body", "br", "button", "canvas", "caption", "center", "cite",
    "code", "col", "colgroup", "data", "datalist", "dd", "del", "details", "dfn", "dialog", "dir", "div", "dl", "dt",
    "em", "embed", "fieldset", "figcaption", "figure", "font", "footer", "form", "frame", "frameset", "g", "h1", "h2",
    "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "i", "iframe", "img", "input", "ins", "kbd",
    "keygen", "label", "legend", "li", "link", "listing", "main", "map", "mark", "marquee", "math", "menu", "meta",
    "meter", "mrk", "nav", "nobr", "noembed", "noframes", "noscript", "object", "ol", "optgroup", "option", "output",
    "p", "param", "picture", "plaintext", "pre", "progress", "q", "rb", "rp", "rt", "rtc", "ruby", "s", "samp",
    "script", "search", "section", "select", "slot", "small", "source", "span", "strike", "strong", "style", "sub",
    "summary", "sup", "svg", "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "time", "title",
    "tr", "track", "tt", "u", "ul", "var", "video", "wbr", "xmp",
))
_TEXT_ATTRIBUTES = frozenset(("alt", "title", "placeholder"))
# fmt: on

_TAG_START = re.compile(r"</?([A-Za-z][^\s/>]*)")
_XML_TAG_START = re.compile(r"</?([^\s/>]+)")
_ATTRIBUTE = re.compile(
    r"[\s/]*+(?:(?P<name>[^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<unclosed>[\"'])|(?P<bare>[^\s>][^\s>]*+)?))?)?"
)


@dataclass(frozen=True, slots=True)
class Tag:
    """Start or end tag, or an untranslated element as a whole."""

    start: int
    end: int
    name: str  # in lower case
    is_closing: bool = False
    is_empty: bool = False  # without content and end tag
    attributes: tuple[tuple[Span, str], ...] = ()  # value and quote of each translated attribute
    is_untranslated: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Text with character references."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Copied:
    """A comment, declaration, untranslated element, or other markup that is copied."""

    start: int
    end: int
    is_word: bool = False  # replaces a word of the sentence, such as a CDATA section


@dataclass(frozen=True, slots=True)
class Superscript:
    """Digits in `<sup>` or `<sub>` that belong to the word before them."""

    start: int
    end: int
    codes: tuple[tuple[Span, str], ...]  # see `superscript_codes`


Token = Tag | Text | Copied | Superscript


def tokenize(text: str, *, is_xml: bool, check: Check) -> Iterator[Token]:
    """Yield the tokens of a message, which add up to it."""
    position = begin = 0
    while (start := text.find("<", position)) >= 0:
        token = _markup_at(text, start, is_xml=is_xml, check=check)
        if token is None:
            position = start + 1
            continue
        if begin < start:
            yield Text(begin, start)
        yield token
        begin = position = token.end
        if isinstance(token, Tag) and not token.is_closing and not is_xml:
            if token.name in _RAW_TEXT or token.name in _ESCAPABLE_RAW_TEXT:
                end = _raw_text_end(text, position, token.name)
                if position < end:
                    is_raw = token.name in _RAW_TEXT
                    yield Copied(position, end) if is_raw else Text(position, end)
                begin = position = end
            elif token.name == "plaintext":
                break
    if begin < len(text):
        yield Text(begin, len(text))


def is_known(name: str) -> bool:
    """Return whether HTML has an element with this name, which is in lower case."""
    return name in _HTML


def _markup_at(text: str, start: int, *, is_xml: bool, check: Check) -> Token | None:
    # The token that begins with a `<`; None if it is text.
    check()
    following = text[start + 1 : start + 2]
    if following == "!":
        return _declaration_at(text, start, is_xml=is_xml)
    if following == "?":
        return Copied(start, _end_of(text, "?>" if is_xml else ">", start + 2))
    match = (_XML_TAG_START if is_xml else _TAG_START).match(text, start)
    if match is None:
        return Copied(start, _end_of(text, ">", start + 2)) if following == "/" else None
    return _tag_at(text, start, match, is_xml=is_xml, check=check)


def _declaration_at(text: str, start: int, *, is_xml: bool) -> Copied:
    if text.startswith("<!--", start):
        if not is_xml and (match := re.compile("<!--(-?>)").match(text, start)):
            return Copied(start, match.end())
        return Copied(start, _end_of(text, "-->", start + 4))
    if is_xml and text.startswith("<![CDATA[", start):
        return Copied(start, _end_of(text, "]]>", start + 9), is_word=True)
    return Copied(start, _end_of(text, ">", start + 2))


def _tag_at(text: str, start: int, match: re.Match[str], *, is_xml: bool, check: Check) -> Token:
    # A tag without end is copied with everything after it.
    name = match[1].lower()
    is_closing = text.startswith("</", start)
    attributes: list[tuple[Span, str]] = []
    is_untranslated = name == "notranslate"
    position = match.end()
    while not text.startswith(">", position):
        check()
        attribute = _ATTRIBUTE.match(text, position)
        if attribute is None or attribute.end() == position or attribute["unclosed"]:
            return Copied(start, len(text))
        position = attribute.end()
        attribute_name = (attribute["name"] or "").lower()
        group = "double" if attribute["double"] is not None else "single"
        value = attribute[group] or attribute["bare"] or ""
        if attribute_name in _TEXT_ATTRIBUTES and value and attribute["bare"] is None:
            span = Span(start=attribute.start(group), end=attribute.end(group))
            attributes.append((span, '"' if group == "double" else "'"))
        elif attribute_name in {"translate", "its:translate"}:
            is_untranslated = value.lower() == "no"
        elif attribute_name == "class":
            is_untranslated = is_untranslated or "notranslate" in value.split()
    is_empty = not is_closing and (
        (text[position - 1] == "/" and (is_xml or name not in _HTML)) or (not is_xml and name in _VOID)
    )
    return Tag(start, position + 1, name, is_closing, is_empty, tuple(attributes), is_untranslated)


def _end_of(text: str, end: str, start: int) -> int:
    place = text.find(end, start)
    return len(text) if place < 0 else place + len(end)


def _raw_text_end(text: str, start: int, name: str) -> int:
    match = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, start)
    return match.start() if match else len(text)
