"""The interface of all formats: the segments of a file, and the file with their translations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.client.enums import TextFormat

MAX_TEXT_CHARACTERS = 4_000  # of one segment; the default limit of a server is 10,000


class FileFormatError(ValueError):
    """A file cannot be translated; the message has the reason and, if known, the line."""


class MarkupLostError(ValueError):
    """A translation lacks markup of its source, or has it in an order with another meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSegment:
    """A text that is translated separately."""

    text: str  # as it is sent to the server
    format: TextFormat
    place: str  # position in the file for messages, such as `line 12`


class FileContent(Protocol):
    """A parsed file."""

    segments: Sequence[FileSegment]  # in the order of the file
    num_kept: int  # texts that already have a translation, which is preserved

    def written(self, translations: Sequence[str | None]) -> bytes:
        """Return the file with a translation for each segment; None preserves the source.

        Raises:
            MarkupLostError: if a translation does not fit into the file; see `check`.
        """

    def check(self, index: int, translation: str) -> None:
        """Raise a MarkupLostError if the translation of one segment does not fit into the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A half-open range of characters of a text file and its replacement. Patches are in order and do not overlap."""

    start: int
    end: int
    segment: FileSegment
    escape: Callable[[str], str]
    """Returns the translation as it is written in the file; may raise a MarkupLostError."""


@dataclass(frozen=True, slots=True)
class PatchedText:
    """A text file in which some ranges are replaced; everything else is preserved byte for byte."""

    text: str
    patches: Sequence[Patch]
    encoding: str = "utf-8"
    num_kept: int = 0

    @property
    def segments(self) -> Sequence[FileSegment]:
        """See `FileContent`."""
        return [patch.segment for patch in self.patches]

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`."""
        self._escaped(self.patches[index], translation)

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; a translation that equals its source does not change the file."""
        parts: list[str] = []
        position = 0
        for patch, translation in zip(self.patches, translations, strict=True):
            parts += (self.text[position : patch.start], self._escaped(patch, translation))
            position = patch.end
        return "".join((*parts, self.text[position:])).encode(self.encoding)

    def _escaped(self, patch: Patch, translation: str | None) -> str:
        if translation is None or translation == patch.segment.text:
            return self.text[patch.start : patch.end]
        return patch.escape(translation)


def decoded(content: bytes) -> str:
    """Return the text of a UTF-8 file, with its line ends and byte order mark.

    Raises:
        FileFormatError: if a byte is not UTF-8; the message has its line.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileFormatError(f"not UTF-8: byte 0x{content[error.start]:02x} in line {line}") from None


class LineNumbers:
    """Line numbers of ascending positions in a text, in one pass."""

    def __init__(self, text: str) -> None:
        """Start at line 1."""
        self._text = text
        self._position = 0
        self._line = 1

    def place(self, position: int) -> str:
        """Return `line N`."""
        self._line += self._text.count("\n", self._position, position)
        self._position = position
        return f"line {self._line}"


def has_words(text: str) -> bool:
    """Return whether a text has anything to translate."""
    return any(character.isalpha() for character in text)
