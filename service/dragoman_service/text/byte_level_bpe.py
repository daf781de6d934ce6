"""Byte-level BPE as in GPT-2 and BART (Radford et al. 2019, section 2.2), with the library `tokenizers`.

Every byte of the UTF-8 text is written as one of 256 visible characters (a space as `Ġ`), and adjacent pairs in a word
are merged in the order of a list of merges. Text is not normalized, and every text can be encoded.
"""

import codecs
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from dragoman_service.errors import BundleError

# Bytes that are written as the character of the same number. The others are written as U+0100 and following.
_VISIBLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(256) if byte not in _VISIBLE)
_BYTES: Final = {
    **{chr(byte): byte for byte in _VISIBLE},
    **{chr(256 + index): byte for index, byte in enumerate(_OTHERS)},
}

_Merges = tuple[tuple[str, str], ...]
_MERGES: Final[TypeAdapter[_Merges]] = TypeAdapter(_Merges)


class ByteLevelBpe:
    """Splits text into pieces and joins them, by the merges of one model. Thread-safe."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Read a JSON array of pairs of pieces, in the order of their merging.

        Raises:
            BundleError: if the content is invalid, or the library is not installed.
        """
        try:
            merges = _MERGES.validate_json(content)
        except ValidationError as error:
            expected = "a JSON array of pairs of strings"
            raise BundleError(str(path), found="something else", expected=expected, what="content") from error
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            expected = "the library for it: pip install tokenizers"
            raise BundleError(str(path), found="none", expected=expected, what="byte-level BPE") from error
        pieces = dict.fromkeys((*_BYTES, *(first + second for first, second in merges)))
        known = {piece: index for index, piece in enumerate(pieces)}
        for first, second in merges:
            if first not in known or second not in known:
                found, expected = repr((first, second)), "two pieces that earlier merges make"
                raise BundleError(str(path), found=found, expected=expected, what="merge")
        model = library.models.BPE(vocab=known, merges=list(merges))
        self._splitter: Any = library.Tokenizer(model)
        self._splitter.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)

    def split(self, text: str) -> list[str]:
        """Return the pieces of a text; none if it has no visible characters."""
        pieces: list[str] = self._splitter.encode(text).tokens if text.strip() else []
        return pieces

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end of each piece in code points.

        If several pieces form one character, the last has it.
        """
        if not text.strip():
            return []
        spans: list[tuple[int, int]] = self._splitter.encode(text).offsets
        ends = [min(span[1], following[0]) for span, following in zip(spans, [*spans[1:], spans[-1][1:]], strict=True)]
        return [(begin, max(begin, end)) for (begin, _), end in zip(spans, ends, strict=True)]

    def join_with_offsets(self, pieces: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of pieces, with U+FFFD for invalid UTF-8, and the begin and end of each piece in it.

        If several pieces form one character, the last has it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts = [decoder.decode(_to_bytes(piece)) for piece in pieces]
        if parts:
            parts[-1] += decoder.decode(b"", final=True)
        offsets, begin = [], 0
        for part in parts:
            offsets.append((begin, begin + len(part)))
            begin += len(part)
        return "".join(parts), offsets


def _to_bytes(piece: str) -> bytes:
    # A piece that is not made of merges, such as a special token, is plain text.
    written = [_BYTES.get(character) for character in piece]
    return piece.encode() if None in written else bytes(byte for byte in written if byte is not None)
