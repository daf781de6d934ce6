"""HTML. Each run of text between two block tags is a segment; the server preserves its inline tags."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser

from dragoman.client.enums import TextFormat
from dragoman.documents.content import (
    MAX_TEXT_CHARACTERS,
    FileFormatError,
    FileSegment,
    LineNumbers,
    Patch,
    PatchedText,
    decoded,
    has_words,
)


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_INLINE = _names(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q ruby rb rp rt "
    "s samp small span strike strong sub sup time tt u var wbr g x ph mrk notranslate"
)
_OPAQUE = _names("script style template object iframe noembed noframes svg math audio video canvas noscript")
_PREFORMATTED = frozenset(("pre", "textarea", "listing"))  # sent with their tags, which make white space significant
_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_TEXT_ATTRIBUTES = frozenset(("alt", "title", "placeholder"))
_MAX_UNENDED = (
    1000  # tags or comments without an end: the parser searches the end of each in the whole rest of the page
)
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+")


def read_html(content: bytes) -> PatchedText:
    """Read an HTML page or fragment. Everything except text is preserved byte for byte, including errors.

    Raises:
        FileFormatError: if it is not UTF-8, or has many tags or comments without an end.
    """
    text = decoded(content)
    return PatchedText(text, list(html_patches(text, LineNumbers(text))))


def html_patches(text: str, lines: LineNumbers, start: int = 0, end: int | None = None) -> Iterator[Patch]:
    """Yield the patches of a range of a text that is HTML."""
    for first, last in _text_spans(text[start:end]):
        raw = text[start + first : start + last]
        stripped = raw.strip()
        at = start + first + raw.index(stripped)
        segment = FileSegment(text=stripped, format=TextFormat.HTML, place=lines.place(at))
        yield Patch(start=at, end=at + len(stripped), segment=segment, escape=str)


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str  # `start`, `end`, `text` or `other`
    name: str
    start: int
    has_text: bool = False  # text or an attribute that is translated
    is_protected: bool = False  # start of an element with `translate="no"`


class _Tokens(HTMLParser):
    """The tokens of a page in order; they cover the page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[_Event] = []
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        for begin, end in (("<", ">"), ("<!--", "-->")):
            count = text.count(begin, text.rfind(end) + 1)
            if count > _MAX_UNENDED:
                raise FileFormatError(f"{count} times {begin} without {end} after it (limit: {_MAX_UNENDED})")
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has_text = any(name in _TEXT_ATTRIBUTES and has_words(value or "") for name, value in attrs)
        is_protected = ("translate", "no") in [(name, (value or "").lower()) for name, value in attrs]
        self._add("start", tag, has_text=has_text, is_protected=is_protected)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # HTML ignores the slash

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text", "", has_text=has_words(data))

    def handle_entityref(self, name: str) -> None:
        self._add("text", name)

    def handle_charref(self, name: str) -> None:
        self._add("text", name)

    def handle_comment(self, _: str) -> None:
        self._add("other", "")

    handle_decl = handle_pi = unknown_decl = handle_comment  # type: ignore[assignment]  # the parameter has another name

    def _add(self, kind: str, name: str, *, has_text: bool = False, is_protected: bool = False) -> None:
        line, column = self.getpos()
        start = self._line_starts[line - 1] + column
        self.events.append(_Event(kind, name, start, has_text, is_protected))


def _text_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that have text to translate."""
    events = _Tokens(text).events
    ends = [*(event.start for event in events[1:]), len(text)]
    ends_of_elements = _ends_of_elements(events)
    span_start: int | None = None
    has_text = False
    depth = 0
    index = 0
    while index < len(events):
        event = events[index]
        is_opaque = event.kind == "start" and (event.is_protected or event.name in _OPAQUE)
        is_preformatted = event.kind == "start" and event.name in _PREFORMATTED and not is_opaque
        last = ends_of_elements.get(index, index) if is_opaque or is_preformatted else index
        if event.kind in ("start", "end") and event.name not in _INLINE:
            if has_text and span_start is not None:
                yield span_start, event.start
            span_start, has_text, depth = None, False, 0
            if any(each.has_text for each in events[index : (last if is_preformatted else index) + 1]):
                yield event.start, ends[last if is_preformatted else index]
        else:
            span_start = event.start if span_start is None else span_start
            has_text |= event.has_text
            depth += _depth(event) if last == index else 0
            if event.kind == "text" and depth == 0 and ends[index] - span_start > MAX_TEXT_CHARACTERS:
                yield from _cut(text, span_start, ends[index])
                span_start, has_text = None, False
        index = last + 1
    if has_text and span_start is not None:
        yield span_start, len(text)


def _depth(event: _Event) -> int:
    if event.kind == "start":
        return int(event.name not in _VOID)
    return -1 if event.kind == "end" else 0


def _ends_of_elements(events: list[_Event]) -> dict[int, int]:
    """Return the index of the end event by that of the start event, for elements that have both."""
    end_by_start: dict[int, int] = {}
    open_starts: dict[str, list[int]] = {}
    for index, event in enumerate(events):
        if event.kind == "start" and event.name not in _VOID:
            open_starts.setdefault(event.name, []).append(index)
        elif event.kind == "end" and open_starts.get(event.name):
            end_by_start[open_starts[event.name].pop()] = index
    return end_by_start


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a long span, joined up to the limit."""
    span_start = start
    previous = start
    for cut in (*(match.start() for match in _SENTENCE_END.finditer(text, start, end)), end):
        if cut - span_start > MAX_TEXT_CHARACTERS and previous > span_start:
            yield span_start, previous
            span_start = previous
        previous = cut
    if text[span_start:end].strip():
        yield span_start, end
