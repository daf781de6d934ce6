"""Splits a text into sentences and joins their translations without losing characters.

A split is a list of ordered, disjoint spans. `join` copies the text between them: white space, line breaks, list
markers, lines without a letter or digit. So whatever the split, `join` of the untranslated sentences is the text.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import sentencex

from dragoman_service.datatypes import Span

log = logging.getLogger(__name__)

# Called every few milliseconds of text work; raises to end it.
Check = Callable[[], None]

# Takes a language code and a text, and returns its sentences, whose concatenation should be the text.
SentenceSplitter = Callable[[str, str], list[str]]

# Input of one call of the library, whose time is quadratic in the length of a line (4 s for 100,000 characters).
_WINDOW_CHARACTERS = 2048

# A longer sentence is cut, at white space if possible. This is the default limit of a text, and bounds the work.
MAX_SENTENCE_CHARACTERS = 10_000

_WHITE_SPACE = "".join(char for char in map(chr, range(0x3001)) if char.isspace())  # U+3000 is the last
_INVISIBLE = "\xad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
_CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
_BLANK = _WHITE_SPACE + _INVISIBLE + _CONTROLS  # never at the edge of a sentence

# Emoji, arrows and dingbats, but not circled digits. They are copied at the edges of a sentence, because few models
# know them.
_PICTOGRAPHS = (
    "\u2190-\u21ff\u2300-\u23ff\u25a0-\u2775\u2794-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\U0001f000-\U0001f0ff\U0001f110-\U0001faff"
)
# Belong to the pictograph before them: zero-width joiner, keycap, variation selectors, tags of flags.
_JOINERS = "\u200d\u20e3\ufe0e\ufe0f\U000e0020-\U000e007f"

_LEADING = re.compile(f"(?:[{re.escape(_BLANK)}]++|[{_PICTOGRAPHS}][{_PICTOGRAPHS}{_JOINERS}]*+)*")
_TRAILING_REVERSED = re.compile(f"(?:[{re.escape(_BLANK)}]++|[{_JOINERS}]*+[{_PICTOGRAPHS}])*")

# Replaced one for one: sentencex 1.0.32 panics on wide white space before a full stop, and rejects lone surrogates.
_LIBRARY_TEXT = {ord(char): " " for char in _WHITE_SPACE if not char.isascii()} | dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)

_WORD_CHARACTER = re.compile(r"[^\W_]")
_LIST_MARKER = re.compile(r"\s*+(?:[-*+•‣◦▪●○·–—]|\(?\d{1,3}\)|\(?[A-Za-z]\))\s+")
_NUMBERED = re.compile(r"\s*+\d{1,3}\.\s+")

_BREAKS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"  # line ends of `str.splitlines`

_LINE = re.compile(f"[^{_BREAKS}]*(?:\r\n|[{_BREAKS}])|[^{_BREAKS}]+")
_NUMBERED_LINE = re.compile(rf"(?:\A|(?<=[{_BREAKS}]))[^\S{_BREAKS}]*\d{{1,3}}\.\s")
_BARE_NUMBER = re.compile(r"\(?\d{1,3}[.)]")

_CLAUSE_END = re.compile(r"[,;:.!?…)\]»”–—](?=\s)|[、。，；：！？]")
_SPACE = re.compile(r"\s+")

# Ends of sentences, by language, that the library reports wrongly: German ordinals, French titles.
_OPEN_END = {
    "de": re.compile(r"\b(?:der|die|das|den|dem|des|am|ab|bis|im|seit|vom|zum|zur) \d{1,2}\.\s+\Z", re.IGNORECASE),
    "fr": re.compile(r"\b(?:M|MM|Mmes?|Mlles?|Me|Mgr|Drs?|Prs?|Stes?|St)\.\s+\Z"),
}
_OPEN_END_CHARACTERS = 40  # more than the longest of them

# Primary subtags of languages without spaces between sentences.
_UNSPACED_LANGUAGES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A text made of translated sentences."""

    text: str
    spans: tuple[Span, ...]  # position of each sentence in `text`, in order


def never_ends() -> None:
    """Check of work without deadline and cancellation."""


def iterate_sentences(
    text: str, *, language: str, splitter: SentenceSplitter = sentencex.segment, check: Check = never_ends
) -> Iterator[Span]:
    """Yield the sentences of a text, reading it only as far as needed.

    Every line break of `str.splitlines` ends a sentence. A span begins and ends with a visible character and has at
    least one letter or digit. A number with a full stop at the start of a line, such as `1. Mai`, is a list marker only
    if another line starts in the same way. A sentence is cut at `MAX_SENTENCE_CHARACTERS`.

    Args:
        text: a text of any length, which may contain lone surrogates.
        language: BCP-47 tag. Its primary subtag selects the rules; unknown languages get the fallback of the library.
        splitter: splits a line. If its sentences do not add up to the line, the line stays whole.
        check: called regularly.
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
    """Return a span of a text (default: all of it) without blanks and pictographs at its edges.

    Empty if no letter or digit is left.
    """
    span = span or Span(start=0, end=len(text))
    untrimmed = text[span.start : span.end]
    start = span.start + _match_length(_LEADING, untrimmed)
    end = span.end - _match_length(_TRAILING_REVERSED, untrimmed[::-1])
    return [Span(start=start, end=end)] if _WORD_CHARACTER.search(text, start, end) else []


def split_overlong(text: str, span: Span, *, fits: Callable[[str], bool]) -> list[Span]:
    """Return the parts of a sentence that each fit the model, in order; the sentence itself if it fits.

    A sentence is halved until every part fits: after clause punctuation in its middle half, or else at white space, or
    else between two characters, always nearest to the middle. White space at a cut belongs to neither part.

    Raises:
        ValueError: if a single character does not fit.
    """
    if fits(text[span.start : span.end]):
        return [span]
    if span.end - span.start < 2:
        raise ValueError(f"the character at {span.start} is too long for the model")
    cut = span.start + _best_cut(text[span.start : span.end])
    halves = trim(text, Span(start=span.start, end=cut)) + trim(text, Span(start=cut, end=span.end))
    return [part for half in halves for part in split_overlong(text, half, fits=fits)]


def join(text: str, spans: Sequence[Span], targets: Sequence[str], *, separator: str = "") -> Joined:
    """Return the text with each span replaced by its target.

    Spans are ordered and disjoint; `separator` is written between the targets of two that touch.
    """
    copied_and_targets: list[str] = []
    target_spans: list[Span] = []
    length = 0
    copied_to = 0
    for span, target in zip(spans, targets, strict=True):
        gap = text[copied_to : span.start] or (separator if target_spans else "")
        start = length + len(gap)
        length = start + len(target)
        copied_and_targets += (gap, target)
        target_spans.append(Span(start=start, end=length))
        copied_to = span.end
    return Joined(text="".join((*copied_and_targets, text[copied_to:])), spans=tuple(target_spans))


def separator_between(source_language: str, target_language: str) -> str:
    """Return the separator of two translated sentences that touch in the source.

    A space from a language without spaces between sentences into one with them, otherwise nothing.
    """
    source, target = (tag.partition("-")[0].lower() for tag in (source_language, target_language))
    return " " if source in _UNSPACED_LANGUAGES and target not in _UNSPACED_LANGUAGES else ""


def _sentence_lengths(line: str, subtag: str, splitter: SentenceSplitter) -> Iterator[int]:
    # Splits a line in windows. Each starts with the sentence that the previous window cuts off.
    start = 0  # of the current sentence
    window_start = 0
    while window_start < len(line):
        window = line[window_start : window_start + _WINDOW_CHARACTERS]
        lengths = _checked_lengths(window.translate(_LIBRARY_TEXT), subtag, splitter)
        if window_start + len(window) < len(line):
            lengths.pop()  # may continue after the window
        for length in lengths:
            window_start += length
            yield from _cut_lengths(line, start, window_start)
            start = window_start
        if not lengths:  # within one sentence, or exactly at its end: repeat with text from both sides
            window_start += len(window) // 2
        if window_start - start >= MAX_SENTENCE_CHARACTERS:
            length = _last_cut(line[start : start + MAX_SENTENCE_CHARACTERS])
            yield length
            start = window_start = start + length
    yield from _cut_lengths(line, start, len(line))


def _cut_lengths(line: str, start: int, end: int) -> Iterator[int]:
    while end - start > MAX_SENTENCE_CHARACTERS:
        length = _last_cut(line[start : start + MAX_SENTENCE_CHARACTERS])
        yield length
        start += length
    if start < end:
        yield end - start


def _last_cut(text: str) -> int:
    # After the last white space near the end, or else between two characters.
    near_end = max(1, len(text) - _WINDOW_CHARACTERS)
    space = next(reversed([match.end() for match in _SPACE.finditer(text, near_end)]), len(text))
    return next((cut for cut in range(space, near_end, -1) if not _is_inside_character(text, cut)), len(text))


def _checked_lengths(window: str, subtag: str, splitter: SentenceSplitter) -> list[int]:
    # Lengths of the sentences of the library, or of the whole window if it fails or loses text.
    try:
        sentences = splitter(subtag, window)
    except BaseException as error:
        # A panic of the Rust library is not an `Exception`, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        log.warning("sentence splitter failed", extra={"error": type(error).__name__, "language": subtag})
        return [len(window)]
    if "".join(sentences) != window:
        log.warning("sentence splitter lost text", extra={"language": subtag})
        return [len(window)]
    return list(_joined_lengths(filter(None, sentences), _OPEN_END.get(subtag)))


def _joined_lengths(sentences: Iterable[str], open_end: re.Pattern[str] | None) -> Iterator[int]:
    # Joins a sentence with an open end to the next one.
    length = 0
    for sentence in sentences:
        length += len(sentence)
        if not (open_end and open_end.search(sentence[-_OPEN_END_CHARACTERS:])):
            yield length
            length = 0
    if length:
        yield length


def _match_length(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


def _best_cut(sentence: str) -> int:
    # Where to halve a sentence of at least two characters. Neither half is empty.
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
    # Whether a cut divides a letter with combining marks, or a joined emoji. Covers most grapheme clusters.
    if cut == len(text):
        return False
    zero_width_joiner = "\u200d"
    before, after = text[cut - 1], text[cut]
    return unicodedata.category(after).startswith("M") or zero_width_joiner in {before, after}
