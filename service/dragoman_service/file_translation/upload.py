"""Uploads of documents: from the body of a request to a file in the directory of documents."""

import asyncio
from http import HTTPStatus
from typing import Any, Final, Protocol

from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.file_translation.jobs import DocumentJobs
from dragoman_service.file_translation.multipart import MultipartForm
from dragoman_service.file_translation.store import DocumentState

MAX_UNAUTHENTICATED_BYTES: Final = 256 * 1024  # read of a body while the key of the caller has not arrived

_FILE_FIELD: Final = "file"
_WRITE_BYTES: Final = 256 * 1024
_FORM_BYTES: Final = 64 * 1024  # for the fields of a form, in addition to its file
_MAX_VALUE_BYTES: Final = 16 * 1024


class UploadSource(Protocol):
    """Request that carries a document."""

    http_status: HTTPStatus | None

    def header(self, name: str) -> str:
        """Return a header; empty if there is none."""

    def chunks(self) -> Any:
        """Yield the chunks of the body."""


class DocumentUpload:
    """Upload of one document."""

    def __init__(self, source: UploadSource, jobs: DocumentJobs) -> None:
        """Read the headers; InvalidFieldError if the body is not a form."""
        content_type = source.header("content-type")
        self.form = MultipartForm(content_type, file_field=_FILE_FIELD, max_value_bytes=_MAX_VALUE_BYTES)
        self.num_bytes = 0  # of the body so far
        self._source = source
        self._jobs = jobs
        self._chunks = source.chunks()

    async def read_key(self, name: str) -> str | None:
        """Read until the field with the key of the caller has arrived; None if it is not within the limit."""
        async for chunk in self._chunks:
            self._feed(chunk)
            if name in dict(self.form.fields) or self.num_bytes > MAX_UNAUTHENTICATED_BYTES:
                break
        return dict(self.form.fields).get(name)

    async def store(self, owner: str) -> tuple[str, int]:
        """Store the file of the form; return the id of the incomplete document, and the size of the file.

        Raises:
            RequestError: if the form is invalid or too large.
            RateLimitedError, StorageFullError: if a limit of stored documents is exceeded.
            StorageUnavailableError: if the disk is full or does not work.
            DeadlineExceededError: if the upload takes too long.
            DrainingError: if the server stops.
        """
        limit = self._jobs.settings.max_file_bytes
        declared = self._source.header("content-length")
        if declared and int(declared) > limit + _FORM_BYTES:
            raise self._too_large()
        store = self._jobs.store
        beginning = asyncio.create_task(asyncio.to_thread(store.begin, owner, int(declared) if declared else limit))
        try:
            state = await asyncio.shield(beginning)
            async with self._jobs.uploading():
                num_bytes = await self._receive(state.document_id, limit)
        except BaseException:
            await asyncio.shield(self._discard(beginning))  # continues if the task is cancelled again
            raise
        return state.document_id, num_bytes

    async def _discard(self, beginning: "asyncio.Task[DocumentState]") -> None:
        # Removes the document; cancellation does not stop the thread that creates it.
        await asyncio.wait((beginning,))
        if not beginning.exception():
            await asyncio.to_thread(self._jobs.store.remove, beginning.result().document_id)

    async def _receive(self, document_id: str, limit: int) -> int:
        num_bytes = await self._write(document_id)
        async for chunk in self._chunks:
            self._feed(chunk)
            if num_bytes + self.form.num_file_bytes > limit:
                raise self._too_large()
            if self.form.num_file_bytes >= _WRITE_BYTES:
                num_bytes += await self._write(document_id)
        num_bytes += await self._write(document_id)
        self.form.check_complete()
        if self.form.file_name is None:
            raise RequestError(_FILE_FIELD, "is required")
        return num_bytes

    def _feed(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self.form.feed(chunk)

    async def _write(self, document_id: str) -> int:
        data = self.form.take_file_bytes()
        await asyncio.to_thread(self._jobs.store.append, document_id, data)
        return len(data)

    def _too_large(self) -> InvalidFieldError:
        self._source.http_status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        limit = f"{self._jobs.settings.max_file_bytes} bytes (documents.max_file_bytes)"
        return InvalidFieldError(_FILE_FIELD, "too large", f"at most {limit}")
