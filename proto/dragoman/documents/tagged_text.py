"""Conversion between text with markup of any format and XML tags, which the server preserves around their words.

A pair such as `**` and `**` becomes `<g id="1">` and `</g>`, other markup `<x id="1"/>`, as in XLIFF. A text without
markup is sent as plain text.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileSegment, MarkupLostError

_TAG = re.compile(r'<(?:g id="(?P<open>\d+)"|(?P<close>/g)|x id="(?P<single>\d+)"\s*/)>')
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a source text: text, a mark, or a line break within a sentence (`break`)."""

    kind: Literal["text", "open", "close", "single", "break"]  # `open` and `close` are a pair; `single` is not paired
    raw: str  # as written in the file
    text: str = ""  # unescaped content of a text piece


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a translation: text, or the mark with an index into the pieces of the source."""

    kind: Literal["text", "open", "close", "single"]
    text: str = ""
    index: int = -1


@dataclass(frozen=True, slots=True)
class TaggedText:
    """The pieces of one text, properly nested."""

    pieces: Sequence[Piece]

    @property
    def is_plain(self) -> bool:
        """True if the text has no markup."""
        return all(piece.kind in ("text", "break") for piece in self.pieces)

    @property
    def words(self) -> str:
        """The text without markup, with a space for each line break."""
        return "".join(" " if piece.kind == "break" else piece.text for piece in self.pieces)

    def without_breaks(self) -> "TaggedText":
        """Return the same text with a space for each line break within a sentence."""
        return TaggedText([Piece(p.kind, " ") if p.kind == "break" else p for p in self.pieces])

    def segment(self, place: str) -> FileSegment:
        """Return the segment to send."""
        if self.is_plain:
            return FileSegment(text=self.words, format=TextFormat.PLAIN, place=place)
        return FileSegment(text="".join(self._tagged()), format=TextFormat.XML, place=place)

    def parts(self, translation: str) -> list[Part]:
        """Parse a translation.

        Raises:
            MarkupLostError: unless each mark occurs exactly once and the marks are properly nested.
        """
        if self.is_plain:
            return [Part("text", translation)]
        parts: list[Part] = []
        opened: list[int] = []
        position = 0
        for tag in _TAG.finditer(translation):
            parts += _text_parts(translation[position : tag.start()])
            position = tag.end()
            if tag["close"]:
                if not opened:
                    raise MarkupLostError("the translation has a closing tag without an opening tag")
                parts.append(Part("close", index=self._end_of(opened.pop())))
            elif tag["open"]:
                opened.append(self._index(tag["open"]))
                parts.append(Part("open", index=opened[-1]))
            else:
                parts.append(Part("single", index=self._index(tag["single"])))
        parts += _text_parts(translation[position:])
        actual = Counter(part.index for part in parts if part.kind != "text")
        expected = Counter(i for i, piece in enumerate(self.pieces) if piece.kind in ("open", "close", "single"))
        if opened or actual != expected:
            raise MarkupLostError("the translation lacks markup of its source or repeats it")
        return parts

    def written(
        self,
        translation: str,
        *,
        escape: Callable[[str], str] = str,
        close: Callable[[int], str] | None = None,
    ) -> str:
        """Return a translation as it is written in the file, with the line breaks of the source.

        Args:
            translation: response of the server.
            escape: escapes text.
            close: returns the end of a pair by the index of its piece; default: as in the source.

        Raises:
            MarkupLostError: see `parts`.
        """
        parts = self.parts(translation)
        breaks = self._breaks(parts)
        written: list[str] = []
        position = 0
        for part in parts:
            if part.kind == "close" and close is not None:
                written.append(close(part.index))
                continue
            if part.kind != "text":
                written.append(self.pieces[part.index].raw)
                continue
            start = 0
            for at in sorted(at for at in breaks if position <= at < position + len(part.text)):
                written += (escape(part.text[start : at - position]), breaks[at])
                start = at - position + 1
            written.append(escape(part.text[start:]))
            position += len(part.text)
        return "".join(written)

    def _index(self, mark: str) -> int:
        """Return the index of the piece with a number; -1 if the number is unknown."""
        # A translation may contain any digits; Python does not convert very long numbers.
        marks = [index for index, piece in enumerate(self.pieces) if piece.kind in ("open", "single")]
        return marks[int(mark) - 1] if len(mark) < 9 and 0 < int(mark) <= len(marks) else -1

    def _tagged(self) -> Iterable[str]:
        """Yield the pieces as XML."""
        number = 0
        for piece in self.pieces:
            number += piece.kind in ("open", "single")
            match piece.kind:
                case "text":
                    yield html.escape(_NOT_IN_XML.sub("\ufffd", piece.text), quote=False)
                case "break":
                    yield " "
                case "open":
                    yield f'<g id="{number}">'
                case "close":
                    yield "</g>"
                case "single":
                    yield f'<x id="{number}"/>'

    def _end_of(self, index: int) -> int:
        """Return the index of the closing piece of an opening piece; -1 if there is none."""
        depth = 0
        for end in range(index, len(self.pieces) if index >= 0 else 0):
            depth += {"open": 1, "close": -1}.get(self.pieces[end].kind, 0)
            if depth == 0:
                return end
        return -1

    def _breaks(self, parts: Sequence[Part]) -> dict[int, str]:
        """Return the line breaks by position of the space that they replace, the nearest by share of the text."""
        broken = {}
        source_length = 0
        for piece in self.pieces:
            if piece.kind == "break":
                broken[source_length] = piece.raw
            source_length += len(piece.text) + (piece.kind == "break")
        text = "".join(part.text for part in parts)
        spaces = [match.start() for match in re.finditer(" ", text)] if broken else []
        chosen: dict[int, str] = {}
        first = 0
        for position, raw in broken.items():
            target = position * len(text) / source_length
            near = min(range(first, len(spaces)), key=lambda i: abs(spaces[i] - target), default=None)
            if near is not None:
                chosen[spaces[near]] = raw
                first = near + 1
        return chosen


def _text_parts(text: str) -> list[Part]:
    return [Part("text", html.unescape(text))] if text else []
