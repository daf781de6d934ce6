"""What every format gives to the job: the texts of a file, and the file again with their translations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.client.enums import TextFormat

MAX_TEXT_CHARACTERS = 4_000
"""Of one segment; below what a server takes by default, 10,000."""


class FileFormatError(ValueError):
    """A file that cannot be translated; says why and, where it can, in which line."""


class MarkupLostError(ValueError):
    """A translation that lacks some of the markup of its source, or has it in an order that means something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSegment:
    """A text that is translated by itself."""

    text: str
    """What the server is given."""

    format: TextFormat
    """What `text` is written in."""

    place: str
    """Where it is in the file, for people: `line 12`."""


class FileContent(Protocol):
    """A file that was read."""

    segments: Sequence[FileSegment]
    """In the order of the file."""

    num_kept: int
    """Texts that have a translation already, which stays."""

    def written(self, translations: Sequence[str | None]) -> bytes:
        """Return the file with a translation for each segment; where there is None, the source stays.

        Raises:
            MarkupLostError: if a translation cannot be put into the file; see `check`.
        """

    def check(self, index: int, translation: str) -> None:
        """Raise a MarkupLostError if the translation of one segment cannot be put into the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A piece of a text file and what becomes of it."""

    start: int
    end: int
    """Characters of the file, half-open; patches are in order and apart from each other."""

    segment: FileSegment
    spelled: Callable[[str], str]
    """Returns the translation as it is written in the file; may raise a MarkupLostError."""


@dataclass(frozen=True, slots=True)
class PatchedText:
    """A text file in which some pieces are replaced; everything else comes out byte for byte."""

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
        self._spelled(self.patches[index], translation)

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; a translation that is its source leaves the piece as it is spelled."""
        pieces: list[str] = []
        position = 0
        for patch, translation in zip(self.patches, translations, strict=True):
            pieces += (self.text[position : patch.start], self._spelled(patch, translation))
            position = patch.end
        return "".join((*pieces, self.text[position:])).encode(self.encoding)

    def _spelled(self, patch: Patch, translation: str | None) -> str:
        if translation is None or translation == patch.segment.text:
            return self.text[patch.start : patch.end]
        return patch.spelled(translation)


def decoded(content: bytes) -> str:
    """Return the text of a UTF-8 file, its line ends and byte order mark as they are.

    Raises:
        FileFormatError: with the line of the first byte that is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileFormatError(f"not UTF-8: byte 0x{content[error.start]:02x} in line {line}") from None


class LineNumbers:
    """Counts lines once over, for places asked for in ascending order."""

    def __init__(self, text: str) -> None:
        """Count in a text."""
        self._text = text
        self._position = 0
        self._line = 1

    def place(self, position: int) -> str:
        """Return `line N`."""
        self._line += self._text.count("\n", self._position, position)
        self._position = position
        return f"line {self._line}"


def has_words(text: str) -> bool:
    """Whether there is anything to translate."""
    return any(character.isalpha() for character in text)
