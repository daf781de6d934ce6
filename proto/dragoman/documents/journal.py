"""Journal of finished translations next to the output, so that a killed run can resume."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dragoman.documents.content import FileSegment


class Journal:
    """Translations by segment and request options, one per line of the file.

    Each line is flushed to the operating system before the next call, so that it survives the process. Its key is a
    hash of segment and options, therefore a journal is also valid for a changed source file. An incomplete last line
    is ignored.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        """Read the journal.

        Args:
            path: path of the file, which need not exist.
            request: everything that a translation depends on, except the text.

        Raises:
            OSError: if the file cannot be read or written.
        """
        self._path = path
        self._request = repr(sorted(request.items()))
        self._translations: dict[str, str] = {}
        is_complete = True
        if path.exists():
            content = path.read_bytes()
            is_complete = content.endswith(b"\n") or not content
            for line in content.splitlines():
                with suppress(ValueError, TypeError):  # incomplete line
                    key, translation = json.loads(line)
                    self._translations[str(key)] = str(translation)
        self._file = path.open("ab")
        if not is_complete:
            self._file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, segment: FileSegment) -> str | None:
        """Return the translation of a segment; None if it is missing."""
        return self._translations.get(self._key(segment))

    def add(self, segment: FileSegment, translation: str) -> None:
        """Add a translation."""
        key = self._key(segment)
        self._translations[key] = translation
        self._file.write(json.dumps([key, translation]).encode() + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """Delete the file, after the output was written."""
        self._path.unlink(missing_ok=True)

    def _key(self, segment: FileSegment) -> str:
        identity = f"{self._request}\0{segment.format.name}\0{segment.text}"
        return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
