"""What is translated already, kept beside the output so that a job that was killed goes on where it was."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dragoman.documents.content import FileSegment


class Journal:
    """Translations by the segment and how it was asked for; a line of the file for each.

    A line is handed to the operating system before the next call, so that it outlives the process. It names its segment
    by a hash, which makes a journal good for another version of the file, too; the one line that a killed process may
    have left unfinished is ignored.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        """Read what is there.

        Args:
            path: of the file, which need not exist.
            request: everything but the text that a translation depends on.

        Raises:
            OSError: if the file cannot be read or written.
        """
        self._path = path
        self._request = repr(sorted(request.items()))
        self._translations: dict[str, str] = {}
        is_whole = True
        if path.exists():
            content = path.read_bytes()
            is_whole = content.endswith(b"\n") or not content
            for line in content.splitlines():
                key, translation = _read(line)
                self._translations[key] = translation
        self._file = path.open("ab")
        if not is_whole:
            self._file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, segment: FileSegment) -> str | None:
        """Return the translation of a segment if it is there."""
        return self._translations.get(self._key(segment))

    def add(self, segment: FileSegment, translation: str) -> None:
        """Keep a translation."""
        key = self._key(segment)
        self._translations[key] = translation
        self._file.write(json.dumps([key, translation]).encode() + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """Delete the file: the output has it all."""
        self._path.unlink(missing_ok=True)

    def _key(self, segment: FileSegment) -> str:
        told = f"{self._request}\0{segment.format.name}\0{segment.text}"
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _read(line: bytes) -> tuple[str, str]:
    try:
        key, translation = json.loads(line)
    except (ValueError, TypeError):
        return "", ""
    return str(key), str(translation)
