"""Azure's dynamic dictionary: `<mstrans:dictionary translation="TARGET">WORD</mstrans:dictionary>` fixes one word."""

import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from dragoman_service.datatypes import Span
from dragoman_service.request import FixedSpan

_MARK = "mstrans:dictionary"
_VALUE = r"""(?:"[^"]{0,1000}+"|'[^']{0,1000}+')"""
_ATTRIBUTE = re.compile(rf"([\w:.-]{{1,64}}+)\s{{0,16}}+=\s{{0,16}}+({_VALUE})")
_ELEMENT_TAG = re.compile(
    rf"<{_MARK}(?P<attributes>(?:\s{{1,16}}+{_ATTRIBUTE.pattern}){{0,8}}+)\s{{0,16}}+>|</{_MARK}\s{{0,16}}+>",
    re.IGNORECASE,
)
_HTML_TAG = re.compile(r"<[/A-Za-z!?][^<>]*+>")


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryText:
    """A text without the elements of the dictionary, and the words that they marked."""

    text: str
    fixed_spans: tuple[FixedSpan, ...] = ()
    positions: tuple[int, ...] = ()  # of removed parts, in `text`; ordered
    lengths: tuple[int, ...] = ()  # of all removed parts up to each of `positions`

    def original_position(self, position: int) -> int:
        """Return the position in the text of the request of a character of `text`."""
        num_before = bisect_right(self.positions, position)
        return position + (self.lengths[num_before - 1] if num_before else 0)


def read_dictionary(text: str, *, is_html: bool) -> DictionaryText:
    """Remove the elements of the dictionary and return the words that they mark, each with its translation.

    An element without a translation keeps its word. Markup within a word is removed, unless it encloses the word. A tag
    without its counterpart, or with other attributes than `name="value"`, remains. The time is linear.
    """
    if _MARK not in text.lower():
        return DictionaryText(text=text)
    removed: list[Span] = []
    words: list[tuple[Span, str]] = []
    for opening, closing in _elements(text):
        removed.append(Span(start=opening.start(), end=opening.end()))
        word, markup = _word(text, Span(start=opening.end(), end=closing.start()), is_html=is_html)
        removed += markup
        removed.append(Span(start=closing.start(), end=closing.end()))
        if word.start < word.end:
            words.append((word, _translation(opening["attributes"])))
    lengths = tuple(accumulate(span.end - span.start for span in removed))
    starts = [span.start for span in removed]

    def position(original: int) -> int:
        num_before = bisect_right(starts, original - 1)
        return original - (lengths[num_before - 1] if num_before else 0)

    pieces, end = [], 0
    for span in removed:
        pieces.append(text[end : span.start])
        end = span.end
    return DictionaryText(
        text="".join((*pieces, text[end:])),
        fixed_spans=tuple(
            FixedSpan(span=Span(start=position(word.start), end=position(word.end)), target=target)
            for word, target in words
        ),
        positions=tuple(map(position, starts)),
        lengths=lengths,
    )


def _elements(text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    # Start and end tag of each element. Of nested elements, the innermost counts.
    opening: re.Match[str] | None = None
    for tag in _ELEMENT_TAG.finditer(text):
        if tag["attributes"] is not None:
            opening = tag
        elif opening is not None:
            yield opening, tag
            opening = None


def _word(text: str, content: Span, *, is_html: bool) -> tuple[Span, list[Span]]:
    # The word without white space and tags around it, and the tags to remove: all of them if some are inside the word.
    found = _HTML_TAG.finditer(text, content.start, content.end) if is_html else ()
    tags = [Span(start=tag.start(), end=tag.end()) for tag in found]
    start, end = content.start, content.end
    for tag in tags:
        if text[start : tag.start].strip():
            break
        start = tag.end
    for tag in reversed(tags):
        if tag.start < start or text[tag.end : end].strip():
            break
        end = tag.start
    words = text[start:end]
    start, end = end - len(words.lstrip()), start + len(words.rstrip())
    return Span(start=start, end=end), tags if any(start < tag.start < end for tag in tags) else []


def _translation(attributes: str) -> str:
    for name, value in _ATTRIBUTE.findall(attributes):
        if name.lower() == "translation":
            return html.unescape(value[1:-1])
    return ""
