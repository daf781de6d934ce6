"""Plain text and subtitles."""

import html
import re
from collections.abc import Iterator, Sequence
from functools import partial

from dragoman.client.enums import TextFormat
from dragoman.documents.content import (
    MAX_TEXT_CHARACTERS,
    FileSegment,
    LineNumbers,
    Patch,
    PatchedText,
    decoded,
    has_words,
)
from dragoman.documents.tagged_text import Piece, TaggedText

_LINE = re.compile(r"[^\r\n]+")
_CUT = re.compile(rf"(?s).{{1,{MAX_TEXT_CHARACTERS}}}(?:(?<=[.!?…] )|(?<= )|\Z)|.{{1,{MAX_TEXT_CHARACTERS}}}")
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d\d[.,]\d+\s*-->\s*(?:\d+:)?\d+:\d\d[.,]\d+")
_SPEAKER = re.compile(r"\s*[-–—♪]")
_CUE_TAG = re.compile(r"<(?P<end>/)?(?P<name>[A-Za-z]*)[^<>]*>|\{\\[^{}]*\}")


def read_text(content: bytes) -> PatchedText:
    """Read plain text. Each line is a segment, as on the server; surrounding white space is preserved.

    Raises:
        FileFormatError: if it is not UTF-8.
    """
    text = decoded(content)
    lines = LineNumbers(text)
    patches = []
    for line in _LINE.finditer(text):
        for cut in _CUT.finditer(text, line.start(), line.end()):
            stripped = cut[0].strip(" \t\ufeff")
            if has_words(stripped):
                start = text.index(stripped, cut.start())
                segment = FileSegment(text=stripped, format=TextFormat.PLAIN, place=lines.place(start))
                patches.append(Patch(start=start, end=start + len(stripped), segment=segment, escape=str))
    return PatchedText(text, patches)


def read_srt(content: bytes) -> PatchedText:
    """Read SubRip subtitles. The text of each cue is one segment; its line breaks are restored.

    Lines of different speakers are separate segments. Tags such as `<i>` are preserved around their words.

    Raises:
        FileFormatError: if it is not UTF-8.
    """
    return _read_cues(content, is_webvtt=False)


def read_vtt(content: bytes) -> PatchedText:
    """Read WebVTT subtitles like `read_srt`; notes, styles, regions and cue settings are preserved.

    Raises:
        FileFormatError: if it is not UTF-8.
    """
    return _read_cues(content, is_webvtt=True)


def _read_cues(content: bytes, *, is_webvtt: bool) -> PatchedText:
    text = decoded(content)
    lines = LineNumbers(text)
    patches = []
    for cue in _cues(text, is_webvtt=is_webvtt):
        by_line = any(_SPEAKER.match(text, start, end) for start, end in cue)
        for spans in [[span] for span in cue] if by_line else [cue]:
            tagged = _tagged(text, spans, is_webvtt=is_webvtt)
            if has_words(tagged.words):
                start, end = spans[0][0], spans[-1][1]
                escape = partial(tagged.written, escape=_webvtt_escaped if is_webvtt else str)
                patches.append(Patch(start=start, end=end, segment=tagged.segment(lines.place(start)), escape=escape))
    return PatchedText(text, patches)


def _cues(text: str, *, is_webvtt: bool) -> Iterator[list[tuple[int, int]]]:
    """Yield the spans of the text lines of each cue, without surrounding white space."""
    lines = [match.span() for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)]
    times = {number for number, (start, end) in enumerate(lines) if _TIMES.match(text, start, end)}
    cue: list[tuple[int, int]] = []
    is_in_cue = False
    for number, (start, end) in enumerate(lines):
        line = text[start:end]
        is_index = number + 1 in times
        if number in times or is_index or not line.strip():
            # A SubRip cue may contain empty lines: the next line belongs to it unless it starts another cue.
            is_in_cue = number in times or (is_in_cue and not is_index and not is_webvtt)
            if cue:
                yield cue
            cue = []
        elif is_in_cue:
            stripped = line.strip()
            first = start + line.index(stripped)
            cue.append((first, first + len(stripped)))
    if cue:
        yield cue


def _tagged(text: str, spans: Sequence[tuple[int, int]], *, is_webvtt: bool) -> TaggedText:
    pieces: list[Piece] = []
    opened: list[tuple[str, int]] = []
    previous_end = spans[0][0]
    for start, end in spans:
        if start > previous_end:
            pieces.append(Piece("break", text[previous_end:start]))
        position = start
        for tag in _CUE_TAG.finditer(text, start, end):
            pieces += _cue_text(text[position : tag.start()], is_webvtt=is_webvtt)
            position = tag.end()
            if tag["end"] and opened and opened[-1][0] == tag["name"]:
                _, at = opened.pop()
                pieces[at] = Piece("open", pieces[at].raw)
                pieces.append(Piece("close", tag[0]))
                continue
            if tag["name"] and not tag["end"]:
                opened.append((tag["name"], len(pieces)))
            pieces.append(Piece("single", tag[0]))
        pieces += _cue_text(text[position:end], is_webvtt=is_webvtt)
        previous_end = end
    return TaggedText(pieces)


def _cue_text(raw: str, *, is_webvtt: bool) -> list[Piece]:
    return [Piece("text", raw, html.unescape(raw) if is_webvtt else raw)] if raw else []


def _webvtt_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;")
