"""Split a text into sentences and put their translations back, losing nothing in between.

A split is a list of spans over the text, in order and apart from each other. What lies between them (white space,
line breaks, list markers, lines without a letter or digit) is not translated: `join` copies it. So whatever the
splitting decides, `join` of the untranslated sentences is the text.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import sentencex

from dragoman_service.datatypes import Span
from dragoman_service.text.windowed_search import Check, never_ends

log = logging.getLogger(__name__)

SentenceSplitter = Callable[[str, str], list[str]]
"""Takes a language code and a text, gives its sentences; together they should be the text."""

_WINDOW_CHARACTERS = 2048
"""What the library sees at once: its time grows with the square of a line (4 s for 100,000 mixed characters)."""

MAX_SENTENCE_CHARACTERS = 10_000
"""Where a sentence without an end is cut, behind white space if there is any near: no sentence is longer than a text
may be by default, and what a line of any length takes to be read is bounded."""

_WHITE_SPACE = "".join(char for char in map(chr, range(0x3001)) if char.isspace())  # U+3000 is the last
_INVISIBLE = "\xad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
_CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
_BLANK = _WHITE_SPACE + _INVISIBLE + _CONTROLS
"""Never the edge of a sentence: white space, control characters, byte order and direction marks."""

_PICTOGRAPHS = (
    "\u2190-\u21ff\u2300-\u23ff\u25a0-\u2775\u2794-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\U0001f000-\U0001f0ff\U0001f110-\U0001faff"
)
"""Emoji, arrows, dingbats, but no circled digits: copied at the edges of a sentence, as a model can only guess at what
it never saw."""

_JOINERS = "\u200d\u20e3\ufe0e\ufe0f\U000e0020-\U000e007f"
"""Follow a pictograph and belong to it: zero-width joiner, keycap, variation selectors, tags of flags."""

_LEADING = re.compile(f"(?:[{re.escape(_BLANK)}]++|[{_PICTOGRAPHS}][{_PICTOGRAPHS}{_JOINERS}]*+)*")
_TRAILING_REVERSED = re.compile(f"(?:[{re.escape(_BLANK)}]++|[{_JOINERS}]*+[{_PICTOGRAPHS}])*")

_LIBRARY_TEXT = {ord(char): " " for char in _WHITE_SPACE if not char.isascii()} | dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)
"""One for one: sentencex 1.0.32 panics on wide white space before a full stop, and takes no lone surrogate."""

_WORD_CHARACTER = re.compile(r"[^\W_]")
_LIST_MARKER = re.compile(r"\s*+(?:[-*+•‣◦▪●○·–—]|\(?\d{1,3}\)|\(?[A-Za-z]\))\s+")
_NUMBERED = re.compile(r"\s*+\d{1,3}\.\s+")

_BREAKS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""What `str.splitlines` ends a line at, for a set of characters in a pattern."""

_LINE = re.compile(f"[^{_BREAKS}]*(?:\r\n|[{_BREAKS}])|[^{_BREAKS}]+")
_NUMBERED_LINE = re.compile(rf"(?:\A|(?<=[{_BREAKS}]))[^\S{_BREAKS}]*\d{{1,3}}\.\s")
"""Begins wherever a line matches `_NUMBERED`."""
_BARE_NUMBER = re.compile(r"\(?\d{1,3}[.)]")

_CLAUSE_END = re.compile(r"[,;:.!?…)\]»”–—](?=\s)|[、。，；：！？]")
_SPACE = re.compile(r"\s+")

_OPEN_END = {
    "de": re.compile(r"\b(?:der|die|das|den|dem|des|am|ab|bis|im|seit|vom|zum|zur) \d{1,2}\.\s+\Z", re.IGNORECASE),
    "fr": re.compile(r"\b(?:M|MM|Mmes?|Mlles?|Me|Mgr|Drs?|Prs?|Stes?|St)\.\s+\Z"),
}
"""What ends no sentence though the library says so, by language: German ordinals, French titles."""

_OPEN_END_CHARACTERS = 40  # more than the longest of these, and what is searched of a sentence

_UNSPACED_LANGUAGES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})
"""Primary subtags of languages that write sentences without a space between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A text put together again."""

    text: str
    spans: tuple[Span, ...]
    """Where each sentence is in `text`, in order."""


def iterate_sentences(
    text: str, *, language: str, splitter: SentenceSplitter = sentencex.segment, check: Check = never_ends
) -> Iterator[Span]:
    """Yield the sentences of a text, looking no further than needed; none if nothing in it can be translated.

    Lines never merge: every line break of `str.splitlines` ends a sentence. A span begins and ends with a visible
    character and holds at least one letter or digit. A number with a full stop that begins a line, as in `1. Mai`,
    is a list marker only if another line of the text begins so. A sentence is cut when it reaches
    `MAX_SENTENCE_CHARACTERS`.

    The text may be of any length and hold lone surrogates. The primary subtag of the language, a BCP-47 tag, picks the
    rules; unknown ones get those of the library's fallback. Where the sentences that `splitter` makes of a line do not
    add up to it, the line stays whole.
    """
    has_numbers = len(list(islice(_NUMBERED_LINE.finditer(text), 2))) > 1
    subtag = language.partition("-")[0].lower()
    for match in _LINE.finditer(text):
        check()
        line = match[0]
        if not _WORD_CHARACTER.search(line):
            continue
        marker = _LIST_MARKER.match(line) or (_NUMBERED.match(line) if has_numbers else None)
        marker_end = marker.end() if marker else 0
        start = match.start() + marker_end
        for length in _sentence_lengths(line[marker_end:], subtag, splitter):
            for span in trim(text, Span(start=start, end=start + length)):
                if not _BARE_NUMBER.fullmatch(text, span.start, span.end):
                    yield span
            start += length


def trim(text: str, span: Span | None = None) -> list[Span]:
    """Return the span of a text (default: all of it) without blanks and pictographs at its edges.

    Nothing if no letter or digit is left.
    """
    span = span or Span(start=0, end=len(text))
    piece = text[span.start : span.end]
    start, end = span.start + _matched(_LEADING, piece), span.end - _matched(_TRAILING_REVERSED, piece[::-1])
    return [Span(start=start, end=end)] if _WORD_CHARACTER.search(text, start, end) else []


def split_overlong(text: str, span: Span, *, fits: Callable[[str], bool]) -> list[Span]:
    """Return the parts of a sentence that each fit the model, in order; the sentence itself if it fits.

    A sentence is halved until every part fits: after clause punctuation if there is any in its middle half, else at
    white space, else between two characters, always nearest to the middle. White space at a cut is in neither part.
    ValueError if a single character does not fit.
    """
    if fits(text[span.start : span.end]):
        return [span]
    if span.end - span.start < 2:
        raise ValueError(f"the character at {span.start} is too long for the model")
    cut = span.start + _best_cut(text[span.start : span.end])
    halves = trim(text, Span(start=span.start, end=cut)) + trim(text, Span(start=cut, end=span.end))
    return [part for half in halves for part in split_overlong(text, half, fits=fits)]


def join(text: str, spans: Sequence[Span], targets: Sequence[str], *, separator: str = "") -> Joined:
    """Return the text with each span replaced by its target and everything between them copied.

    Spans are in order and apart from each other; `separator` is set between the targets of two that touch.
    """
    pieces: list[str] = []
    target_spans: list[Span] = []
    length = 0
    copied_to = 0
    for span, target in zip(spans, targets, strict=True):
        gap = text[copied_to : span.start] or (separator if target_spans else "")
        start = length + len(gap)
        length = start + len(target)
        pieces += (gap, target)
        target_spans.append(Span(start=start, end=length))
        copied_to = span.end
    return Joined(text="".join((*pieces, text[copied_to:])), spans=tuple(target_spans))


def separator_between(source_language: str, target_language: str) -> str:
    """Return what belongs between two translated sentences that touched in the source.

    One space from a language that writes sentences without spaces into one that needs them, else nothing.
    """
    source, target = (tag.partition("-")[0].lower() for tag in (source_language, target_language))
    return " " if source in _UNSPACED_LANGUAGES and target not in _UNSPACED_LANGUAGES else ""


def _sentence_lengths(line: str, subtag: str, splitter: SentenceSplitter) -> Iterator[int]:
    """Split a line in windows; each but the last starts where the sentence cut by the one before it starts."""
    start = 0  # of the sentence being read
    window_start = 0
    while window_start < len(line):
        window = line[window_start : window_start + _WINDOW_CHARACTERS]
        lengths = _checked_lengths(window.translate(_LIBRARY_TEXT), subtag, splitter)
        if window_start + len(window) < len(line):
            lengths.pop()  # may go on behind the window
        for length in lengths:
            window_start += length
            yield from _cut_lengths(line, start, window_start)
            start = window_start
        if not lengths:  # inside one sentence, or at its very end: look again with both sides in view
            window_start += len(window) // 2
        if window_start - start >= MAX_SENTENCE_CHARACTERS:
            length = _last_cut(line[start : start + MAX_SENTENCE_CHARACTERS])
            yield length
            start = window_start = start + length
    yield from _cut_lengths(line, start, len(line))


def _cut_lengths(line: str, start: int, end: int) -> Iterator[int]:
    """Yield the length of a sentence, or those of its parts if it is too long."""
    while end - start > MAX_SENTENCE_CHARACTERS:
        length = _last_cut(line[start : start + MAX_SENTENCE_CHARACTERS])
        yield length
        start += length
    if start < end:
        yield end - start


def _last_cut(piece: str) -> int:
    """Return where to end a sentence that does not end by itself: behind the last white space, or anywhere."""
    near_end = max(1, len(piece) - _WINDOW_CHARACTERS)
    space = next(reversed([match.end() for match in _SPACE.finditer(piece, near_end)]), len(piece))
    return next((cut for cut in range(space, near_end, -1) if not _is_inside_character(piece, cut)), len(piece))


def _checked_lengths(window: str, subtag: str, splitter: SentenceSplitter) -> list[int]:
    """Return the lengths of the library's sentences, or of the whole window if it fails or loses anything."""
    try:
        sentences = splitter(subtag, window)
    except BaseException as error:
        # A panic of the library's Rust side is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        log.warning("sentence splitter failed", extra={"error": type(error).__name__, "language": subtag})
        return [len(window)]
    if "".join(sentences) != window:
        log.warning("sentence splitter lost text", extra={"language": subtag})
        return [len(window)]
    return list(_joined_lengths(filter(None, sentences), _OPEN_END.get(subtag)))


def _joined_lengths(sentences: Iterable[str], open_end: re.Pattern[str] | None) -> Iterator[int]:
    """Yield the lengths of sentences; one that is known not to have ended there goes on with the next."""
    length = 0
    for sentence in sentences:
        length += len(sentence)
        if not (open_end and open_end.search(sentence[-_OPEN_END_CHARACTERS:])):
            yield length
            length = 0
    if length:
        yield length


def _matched(pattern: re.Pattern[str], text: str) -> int:
    """Return how many characters at the start of a text a pattern that may match nothing matches."""
    match = pattern.match(text)
    return match.end() if match else 0


def _best_cut(sentence: str) -> int:
    """Return where to halve a sentence of two characters or more; both halves have some."""
    low = max(1, len(sentence) // 4)
    high = len(sentence) - low
    for pattern in (_CLAUSE_END, _SPACE):
        cuts = [match.end() for match in pattern.finditer(sentence, low - 1) if match.end() <= high]
        if cuts:
            return min(cuts, key=lambda cut: abs(2 * cut - len(sentence)))
    middle = len(sentence) // 2
    nearest = sorted(range(low, high + 1), key=lambda cut: abs(cut - middle))
    return next((cut for cut in nearest if not _is_inside_character(sentence, cut)), middle)


def _is_inside_character(text: str, cut: int) -> bool:
    """Whether a cut would part a letter from its marks or the members of a joined emoji (most, not all, clusters)."""
    if cut == len(text):
        return False
    zero_width_joiner = "\u200d"
    before, after = text[cut - 1], text[cut]
    return unicodedata.category(after).startswith("M") or zero_width_joiner in {before, after}
