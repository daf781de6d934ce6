"""Splits a text into sentences and joins their translations without losing characters.

A split is a list of ordered, disjoint spans. `join` copies the text between them: white space, line breaks, list
markers, lines without a letter or digit. So whatever the split, `join` of the untranslated sentences is the text.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

import sentencex

from dragoman_service.datatypes import Span
from dragoman_service.language_tags import primary_language

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

_DIGIT = re.compile(r"\d")
_WORD_CHARACTER = re.compile(r"[^\W_]")
_LIST_MARKER = re.compile(r"\s*+(?:#{1,6}|[-*+•‣◦▪●○·–—]|\(?\d{1,3}\)|\(?[A-Za-z]\))\s+")
_NUMBERED = re.compile(r"\s*+\d{1,3}\.\s+")

_BREAKS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"  # line ends of `str.splitlines`

# Ends of sentences and cells of a table: line ends, tabs, runs of spaces.
_BREAK = rf"\r\n|[{_BREAKS}\t]|[ \xa0]{{3,}}+"
_NUMBERED_LINE = re.compile(rf"(?:\A|(?<=[{_BREAKS}]))[^\S{_BREAKS}]*\d{{1,3}}\.\s")
_NUMBERED_START = re.compile(rf"[^\S{_BREAKS}]{{0,32}}+\d{{1,3}}\.\s")
_BARE_MARKER = re.compile(r"\(?(?:\d{1,3}[.)]|[A-Za-z]\))")

_CLAUSE_END = re.compile(r"[,;:.!?…)\]»”–—](?=\s)|[、。，；：！？]")
_SPACE = re.compile(r"\s+")

# Line breaks and tabs of resource files, as escapes. An escaped backslash before them belongs to the break. Neither the
# paths `C:\notes` and `docs\notes.txt` nor the command `\textbf{` contain one.
ESCAPED_BREAKS = re.compile(
    r"(?<!\\)(?:(?=\\\\)..){0,16}+\\[nrt](?<!\b[A-Za-z]:\\[nrt](?=[a-z]))"
    r"(?!(?<=\w\\[nrt])[\w-]{0,64}+\.[a-z][a-z0-9]{1,3}\b)(?![a-z]{2,24}+[{\[])"
)

# German words that begin a sentence in capitals, and are not nouns.
_DE_STARTS = (
    r"(?:Aber|Alle|Als|Am|Auch|Auf|Aus|Bei|Bis|Bitte|Da|Damit|Danach|Dann|Das|Dem|Den|Denn|Der|Deshalb|Dies|Diese[mnrs]?"
    r"|Die|Doch|Dort|Du|Ein|Eine[mnrs]?|Er|Es|Für|Heute|Hier|Ich|Ihr|Ihre[mnrs]?|Im|In|Ja|Jetzt|Kein|Keine|Man|Mein|Mit"
    r"|Nach|Nein|Nicht|Nun|Nur|Ob|Oder|Sein|Seine|Seit|Sie|Sind|So|Trotzdem|Über|Um|Und|Unser|Unsere|Vom|Von|Vor|Wann"
    r"|Warum|Was|Weil|Wenn|Wer|Wie|Wir|Wo|Zu|Zum|Zur)\b"
)
# German abbreviations before a word.
_DE_OPEN = (
    r"Abt|abzgl|allg|Anm|Aufl|bes|betr|bspw|bzgl|bzw|ca|ders|dgl|Dipl|Dr|einschl|ehem|entf|entspr|ev|evtl|exkl|Fa|Fam|[gG]eb"
    r"|gegr|gem|ggf|hl|Hl|Hr|Hrn|Hrsg|inkl|insb|insbes|jew|kath|lfd|lt|Mag|mind|Nr|öffentl|Prof|sog|St|urspr|verh"
    r"|vgl|vorl|wg|zw|zzgl|zzt|d\. ?h|i\. ?A|i\. ?d\. ?R|i\. ?S\. ?[dv]|i\. ?V|i\. ?V\. ?m|m\. ?E|o\. ?g|u\. ?U"
    r"|v\. ?a|z\. ?B|z\. ?Hd|z\. ?T|z\. ?Zt?"
)
_DE_LABELS = r"Abs|Abb|Anh|Anl|Art|Bd|Gl|Hs|Kap|lit|max|Nrn|Pos|Rdnr|Rn|Rz|S|Tab|Tel|Ziff|[\w-]{0,20}[Ss]tr"
_DE_ORDINALS = (
    r"(?:Jan|Febr?|März|April?|Mai|Juni?|Juli?|Aug|Sept?|Okt|Nov|Dez|Januar|Februar|August|September|Oktober|November"
    r"|Dezember|Jh|Jahrhunderts?|Platz|Klasse|Stock|Etage|Aufl|Auflage|Geburtstag|Lebensjahr|Jahrestag|Quartal"
    r"|Semester|Weltkrieg|Spieltag|Kapitel|Sieger)\b"
)
_EN_LABELS = (
    r"apt|arts?|bldg|chs?|chap|cl|eqs?|ext|figs?|max|min|nos?|pp?|paras?|refs?|rm|secs?|sect|tab|tel|vols?"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
)

# The end of a sentence of the library and the beginning of the next one, if both are one sentence. By language.
_SEPARATOR = "\0"
_ONE_SENTENCE = {
    "de": re.compile(
        rf"(?:\b(?:{_DE_OPEN})\.\s*+{_SEPARATOR}|\b(?:Dipl|Mag)\.{_SEPARATOR}-"
        rf"|\b(?:{_DE_LABELS})\.\s++{_SEPARATOR}\d"
        rf"|\b(?:Fr|Ing|tgl|vorm|[Mm]io|[Mm]rd|Tsd)\.\s++{_SEPARATOR}(?!{_DE_STARTS})"
        rf"|\b(?:der|die|das|den|dem|des|am|ab|bis|im|seit|vom|beim|zum|zur|jede[mnrs]?) \d{{1,2}}\.\s++{_SEPARATOR}"
        rf"(?!{_DE_STARTS})"
        rf"|\b\d{{1,2}}\.\s++{_SEPARATOR}{_DE_ORDINALS}"
        rf"|\b(?:Jan|Febr?|Apr|Jun|Jul|Aug|Sept?|Okt|Nov|Dez|[IVX]{{2,6}})\.\s++{_SEPARATOR}[a-zäöüß\d])",
    ),
    "en": re.compile(
        rf"(?:\b(?:[aA]pprox|cf|[eE]\. ?g|excl|[iI]\. ?e|incl|viz|vs)\.\s++{_SEPARATOR}"
        rf"|\b(?i:{_EN_LABELS})\.\s++{_SEPARATOR}[\d(]"
        rf"|(?:\d\s?(?:ft|hrs?|in|kg|lbs?|mins?|oz|secs?|yds?)|\b(?:dept|etc|et al|Inc|Ltd|Corp|Co|Jr|Sr))\.\s++"
        rf"{_SEPARATOR}[a-z])",
    ),
    "fr": re.compile(rf"\b(?:M|MM|Mmes?|Mlles?|Me|Mgr|Drs?|Prs?|Stes?|St)\.\s++{_SEPARATOR}"),
}
_CONTEXT_CHARACTERS = 24  # of each sentence

# Ends of sentences that the library does not report, by language.
_MISSED_END = {
    "de": re.compile(
        r"\b(?:(?:usw|usf|etc|u\. ?v\. ?m|u\. ?a\. ?m|[ou]\. ?Ä)\.\s++(?=[\"„“»‚(]?[A-ZÄÖÜ])"
        r"|(?:[vn]\. ?Chr|Mio|Mrd|Tsd|Min|Std|Sek|MwSt|Art|Mo|Di|Mi|Do|Fr|Sa|So|a\. ?[MD]|s\. ?[ou]|u\. ?a|[A-ZÄÖÜ]"
        rf"|[IVX]{{2,6}})\.\s++(?={_DE_STARTS}))"
    ),
    "en": re.compile(r"\b(?:no|(?:(?<=[?.!”\"] )|(?<!.))No)\.\s++(?=[\"“'(]?(?:I\b|[A-Z][a-z']))"),
}

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
    text: str,
    *,
    language: str,
    ends: Sequence[Span] = (),
    breaks: re.Pattern[str] | None = None,
    splitter: SentenceSplitter = sentencex.segment,
    check: Check = never_ends,
) -> Iterator[Span]:
    """Yield the sentences of a text, reading it only as far as needed.

    Every line break of `str.splitlines`, every tab and every run of three spaces ends a sentence. A span begins and
    ends with a visible character and has at least one letter or digit. A number with a full stop at the start of a
    line, such as `1. Mai`, is a list marker only if another line starts in the same way. A sentence is cut at
    `MAX_SENTENCE_CHARACTERS`.

    Args:
        text: a text of any length, which may contain lone surrogates.
        language: BCP-47 tag. Its primary subtag selects the rules; unknown languages get the fallback of the library.
        ends: ordered, disjoint ranges that end a sentence and belong to none, such as the bars between plural forms.
        breaks: additional line breaks, such as `ESCAPED_BREAKS`.
        splitter: splits a line. If its sentences do not add up to the line, the line stays whole.
        check: called regularly.
    """
    has_numbers = bool(_DIGIT.search(text)) and len(list(islice(_numbered_starts(text, ends), 2))) > 1
    subtag = primary_language(language)
    for piece in _pieces(text, ends, breaks):
        check()
        line = text[piece.start : piece.end]
        if not _WORD_CHARACTER.search(line):
            continue
        marker = _LIST_MARKER.match(line) or (_NUMBERED.match(line) if has_numbers else None)
        marker_end = marker.end() if marker else 0
        start = piece.start + marker_end
        for length in _sentence_lengths(line[marker_end:], subtag, splitter):
            for span in trim(text, Span(start=start, end=start + length)):
                if not _BARE_MARKER.fullmatch(text, span.start, span.end):
                    yield span
            start += length


def _numbered_starts(text: str, ends: Sequence[Span]) -> Iterator[re.Match[str]]:
    yield from _NUMBERED_LINE.finditer(text)
    yield from filter(None, (_NUMBERED_START.match(text, end.end) for end in ends))


def _pieces(text: str, ends: Sequence[Span], breaks: re.Pattern[str] | None) -> Iterator[Span]:
    # Lines and cells, with the white space that ends them.
    expression = _break_expression(breaks)
    start = 0
    for end in chain(ends, (None,)):
        stop = end.start if end else len(text)
        for match in expression.finditer(text, start, stop):
            # White space is trimmed, and a list marker needs it. Any other break is text.
            yield Span(start=start, end=match.end() if match[0].isspace() else match.start())
            start = match.end()
        if start < stop:
            yield Span(start=start, end=stop)
        start = end.end if end else stop


@lru_cache(maxsize=8)
def _break_expression(breaks: re.Pattern[str] | None) -> re.Pattern[str]:
    return re.compile(f"{_BREAK}|(?:{breaks.pattern})", breaks.flags) if breaks else re.compile(_BREAK)


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


@lru_cache(maxsize=256)
def separator_between(source_language: str, target_language: str) -> str:
    """Return the separator of two translated sentences that touch in the source.

    A space from a language without spaces between sentences into one with them, otherwise nothing.
    """
    source, target = primary_language(source_language), primary_language(target_language)
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
    return list(_joined_lengths(_with_missed_ends(filter(None, sentences), subtag), subtag))


def _with_missed_ends(sentences: Iterable[str], subtag: str) -> Iterator[str]:
    missed_end = _MISSED_END.get(subtag)
    for sentence in sentences:
        if missed_end is None or "." not in sentence[:-1]:  # as for most sentences
            yield sentence
            continue
        start = 0
        for match in missed_end.finditer(sentence):
            yield sentence[start : match.end()]
            start = match.end()
        yield sentence[start:]


def _joined_lengths(sentences: Iterable[str], subtag: str) -> Iterator[int]:
    # Joins sentences that are one sentence.
    one_sentence = _ONE_SENTENCE.get(subtag)
    length = 0
    tail = ""  # of the sentences so far
    for sentence in sentences:
        around = f"{tail}{_SEPARATOR}{sentence[:_CONTEXT_CHARACTERS]}"
        if length and not (one_sentence and one_sentence.search(around)):
            yield length
            length = 0
        length += len(sentence)
        tail = sentence[-_CONTEXT_CHARACTERS:]
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
