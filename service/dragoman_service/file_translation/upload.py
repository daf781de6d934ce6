"""Receiving an uploaded document: from the body of a request into the directory of documents."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol

from dragoman_service.errors import InvalidFieldError
from dragoman_service.file_translation.jobs import DocumentJobs
from dragoman_service.file_translation.multipart import FormWithFile

MAX_UNAUTHENTICATED_BYTES: Final = 256 * 1024
"""Of a body in which the key of the caller has not arrived yet."""

_WRITE_BYTES: Final = 256 * 1024
_FORM_BYTES: Final = 64 * 1024
"""Room for the fields of a form beside its file."""


class UploadSource(Protocol):
    """The request that carries a document."""

    http_status: HTTPStatus | None

    def header(self, name: str) -> str:
        """Return a header; empty if there is none."""

    def chunks(self) -> Any:
        """Yield the body."""


class DocumentUpload:
    """One upload."""

    def __init__(self, source: UploadSource, jobs: DocumentJobs) -> None:
        """Read the headers; InvalidFieldError if the body is not a form."""
        self.form = FormWithFile(source.header("content-type"))
        self.num_bytes = 0
        """Of the body, so far."""

        self._source = source
        self._jobs = jobs
        self._chunks = source.chunks()

    async def read_key(self, name: str) -> str | None:
        """Read until the field with the key of the caller has arrived; None if it does not within the limit."""
        async for chunk in self._chunks:
            self._feed(chunk)
            if name in self.form.fields or self.num_bytes > MAX_UNAUTHENTICATED_BYTES:
                break
        return self.form.fields.get(name)

    async def store(self, owner: str) -> tuple[str, int]:
        """Store the file of the form; return the id of the document, which is not complete yet, and its size.

        Raises:
            InvalidFieldError: if the form is invalid or too large.
            RateLimitedError, OverloadedError: if there is no room for it.
            DeadlineExceededError: if it does not arrive in time.
            DrainingError: if the server stops.
        """
        limit = self._jobs.settings.max_file_bytes
        declared = self._source.header("content-length")
        if declared and int(declared) > limit + _FORM_BYTES:
            raise self._too_large()
        store = self._jobs.store
        state = await asyncio.to_thread(store.begin, owner, int(declared) if declared else limit)
        try:
            async with self._jobs.uploading():
                num_bytes = await self._receive(store.source_path(state.document_id), limit)
        except BaseException:
            await asyncio.to_thread(store.remove, state.document_id)
            raise
        return state.document_id, num_bytes

    async def _receive(self, path: Path, limit: int) -> int:
        num_bytes = await self._write(path)
        async for chunk in self._chunks:
            self._feed(chunk)
            if num_bytes + self.form.num_file_bytes > limit:
                raise self._too_large()
            if self.form.num_file_bytes >= _WRITE_BYTES:
                num_bytes += await self._write(path)
        num_bytes += await self._write(path)
        if not self.form.is_complete:
            raise InvalidFieldError("request", "a form without its end", "a whole form")
        if self.form.file_name is None:
            raise InvalidFieldError("file", "absent", "the file to translate")
        return num_bytes

    def _feed(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self.form.feed(chunk)

    async def _write(self, path: Path) -> int:
        data = self.form.take_file_bytes()
        await asyncio.to_thread(_append, path, data)
        return len(data)

    def _too_large(self) -> InvalidFieldError:
        self._source.http_status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        limit = f"{self._jobs.settings.max_file_bytes} bytes (documents.max_file_bytes)"
        return InvalidFieldError("file", "larger than that", f"at most {limit}")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
