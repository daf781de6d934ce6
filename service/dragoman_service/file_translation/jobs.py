"""Work on uploaded documents: reading, translation and writing, within the limits of the settings."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Final

from dragoman.documents.content import FileSegment
from dragoman.documents.formats import FORMATS
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    InvalidFieldError,
    OverloadedError,
    RateLimitedError,
    RequestError,
)
from dragoman_service.file_translation.parser import DocumentError, FileParser
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.file_translation.slots import FairSlots
from dragoman_service.file_translation.state import DocumentState, DocumentStatus
from dragoman_service.file_translation.store import HEARTBEAT_S, INTERRUPTED, DocumentNotFoundError, DocumentStore
from dragoman_service.file_translation.texts import TextTranslator
from dragoman_service.middleware import error_mapping
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.rate_limits import ConcurrencyLimiter
from dragoman_service.security.settings import GrpcSettings
from dragoman_service.threads import call_in_daemon
from dragoman_service.translation.translator import Translator

log = logging.getLogger(__name__)

_PROGRESS_S: Final = 1.0
"""Shortest time between two changes of a stored state."""

_BEATS_PER_SWEEP: Final = 4
_MAX_MESSAGE_CHARACTERS: Final = 500
_RESULT_BYTES: Final = 64 * 1024
_ESCAPE_BYTES: Final = 6
"""Of a character of a translation in a file: `\\u00e4`."""


@cache
def supported_formats() -> tuple[str, ...]:
    """Return the ends of file names that can be translated here."""
    return tuple(suffix for suffix, file_format in FORMATS.items() if file_format.is_available)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRequest:
    """What is asked for a document."""

    suffix: str
    template: pb.TranslateRequest
    """Languages and options; the source language is empty if it is to be detected."""

    peer: str
    request_id: str
    count: Callable[[int], None] = lambda _: None
    """Gets the number of characters once the document is translated."""


class DocumentJobs:
    """Works on the documents that this server has received, and keeps the directory in order."""

    def __init__(
        self,
        settings: DocumentSettings,
        store: DocumentStore,
        *,
        translator: Translator,
        limiter: ConcurrencyLimiter,
        grpc: GrpcSettings,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.store = store
        self._translator = translator
        self._limiter = limiter
        self._grpc = grpc
        self._metrics = metrics
        self._parser = FileParser(settings)
        self._slots = FairSlots(total=settings.max_concurrent, per_caller=settings.max_caller_concurrent)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._uploads: set[asyncio.Timeout] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Renew the heartbeat and remove expired documents from now on."""
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End all work; documents that are not translated become interrupted."""
        self._is_stopping = True
        for upload in self._uploads:
            upload.reschedule(asyncio.get_running_loop().time())
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        if self._keeping:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
            self._keeping = None
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.store.close)

    @contextlib.asynccontextmanager
    async def uploading(self) -> AsyncIterator[None]:
        """Limit the time of an upload.

        Raises:
            DeadlineExceededError: if it takes too long.
            DrainingError: if the server stops.
        """
        if self._is_stopping:
            raise DrainingError
        try:
            async with asyncio.timeout(self.settings.upload_timeout_s) as upload:
                self._uploads.add(upload)
                try:
                    yield
                finally:
                    self._uploads.discard(upload)
        except TimeoutError:
            raise DrainingError if self._is_stopping else DeadlineExceededError("stream") from None

    def submit(self, state: DocumentState, request: DocumentRequest) -> "asyncio.Task[None]":
        """Begin to work on a queued document; the task ends with it and raises nothing."""
        task = asyncio.create_task(self._work(state, request))
        self._tasks[state.document_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(state.document_id))
        return task

    async def remove(self, document_id: str) -> None:
        """End the work on a document of this server, and remove it."""
        if task := self._tasks.get(document_id):
            task.cancel()
            await asyncio.wait((task,))
        await asyncio.to_thread(self.store.remove, document_id)

    async def _work(self, state: DocumentState, request: DocumentRequest) -> None:
        outcome, began_s = "error", time.monotonic()
        document_id = state.document_id
        message = ""
        try:
            async with asyncio.timeout(self.settings.expiry_s), self._slots.taken(state.owner):
                self._metrics.documents_in_progress.inc()
                try:
                    await self._translate(state, request)
                finally:
                    self._metrics.documents_in_progress.dec()
            outcome = "done"
        except DocumentNotFoundError:
            outcome = "removed"
        except TimeoutError:
            outcome = "expired"
            await asyncio.to_thread(self.store.remove, document_id)
        except (asyncio.CancelledError, DrainingError):
            outcome, message = "interrupted", INTERRUPTED
        except (DocumentError, RequestError) as error:
            message = str(error)
        except (OverloadedError, RateLimitedError) as error:
            message = f"there is no disk space for the translation: {error}"
        except Exception as error:
            message = error_mapping.NEUTRAL_MESSAGE
            log.exception("document failed", extra={"request_id": request.request_id}, exc_info=error)
        if message:
            with contextlib.suppress(DocumentNotFoundError, OSError):
                await asyncio.to_thread(self.store.fail, document_id, message[:_MAX_MESSAGE_CHARACTERS])
        self._metrics.documents.labels(outcome).inc()
        facts = {"caller": state.owner, "outcome": outcome, "format": request.suffix, "request_id": request.request_id}
        log.info("document", extra={**facts, "duration_s": round(time.monotonic() - began_s, 3)})

    async def _translate(self, state: DocumentState, request: DocumentRequest) -> None:
        document_id, store = state.document_id, self.store
        source, target_language = store.source_path(document_id), request.template.target_language
        segments = await self._parser.read(source, request.suffix, target_language)
        num_characters = sum(len(segment.text) for segment in segments)
        progress = _Progress(store, document_id)
        await progress.start(num_characters)
        translator = TextTranslator(
            translator=self._translator,
            admitted=self._limiter.admitted,
            allowed_s=self._grpc.allowed_s,
            caller=state.owner,
            peer=request.peer,
            request_id=request.request_id,
            on_progress=progress.add,
        )
        template = pb.TranslateRequest()
        template.CopyFrom(request.template)
        if segments and not template.source_language:
            template.source_language = await translator.detected_language(segments, target_language)
        translations = await translator.translations(segments, template)
        kept = await asyncio.to_thread(_failed, translator, segments, translations)
        if segments and len(kept) == len(segments):
            place, reason = kept[0]
            raise DocumentError(f"no text could be translated; the first, {place}: {reason}")
        num_bytes = sum(len(translation or "") for translation in translations) * _ESCAPE_BYTES
        max_bytes = 2 * state.reserved_bytes + num_bytes + _RESULT_BYTES
        await asyncio.to_thread(store.reserve, document_id, state.reserved_bytes + max_bytes)
        kept += await self._parser.write(
            source,
            request.suffix,
            target_language,
            translations,
            store.result_path(document_id),
            max_bytes=max_bytes,
        )
        await asyncio.to_thread(store.finish, document_id, message=_incomplete(kept, len(segments)))
        request.count(num_characters)

    async def _keep(self) -> None:
        for beat in itertools.count():
            try:
                await call_in_daemon(self.store.heartbeat, name="documents")  # the pool may be busy for longer
                if beat % _BEATS_PER_SWEEP == 0 and (num_expired := await asyncio.to_thread(self.store.sweep)):
                    log.info("documents expired", extra={"documents": num_expired})
            except (OSError, DragomanError) as error:
                log.warning("the directory of documents cannot be kept", extra={"reason": str(error)})
            await asyncio.sleep(HEARTBEAT_S)


class _Progress:
    """Stores how far a document is, not more often than once in `_PROGRESS_S`."""

    def __init__(self, store: DocumentStore, document_id: str) -> None:
        self._store = store
        self._document_id = document_id
        self._num_done = 0
        self._stored_s = time.monotonic()

    async def start(self, num_characters: int) -> None:
        """Store that translation begins."""
        await self._update(status=DocumentStatus.TRANSLATING, num_characters=num_characters, started_s=time.time())

    async def add(self, num_characters: int) -> None:
        """Count characters that were translated; DocumentNotFoundError if the document was removed."""
        self._num_done += num_characters
        if time.monotonic() - self._stored_s >= _PROGRESS_S:
            self._stored_s = time.monotonic()
            await self._update(num_done_characters=self._num_done)

    async def _update(self, **changes: object) -> None:
        await asyncio.to_thread(self._store.update, self._document_id, **changes)


def suffix_of(file_name: str) -> str:
    """Return the end of the name of a file in lower case.

    Raises:
        InvalidFieldError: if files of this format cannot be translated here.
    """
    suffix = PurePath(file_name).suffix.lower()
    if suffix not in supported_formats():
        raise InvalidFieldError("file", f"of the format {suffix[:16]!r}", f"one of {', '.join(supported_formats())}")
    return suffix


def _failed(
    translator: TextTranslator, segments: Sequence[FileSegment], translations: Sequence[str | None]
) -> list[tuple[str, str]]:
    """Return place and reason of each segment that was not translated."""
    return [
        (segment.place, translator.failures[segment.format, segment.text])
        for segment, translation in zip(segments, translations, strict=True)
        if translation is None
    ]


def _incomplete(kept: list[tuple[str, str]], num_segments: int) -> str:
    """Return what a translation lacks; empty if it is complete."""
    if not kept:
        return ""
    place, reason = kept[0]
    message = f"{len(kept)} of {num_segments} texts are not translated; the first, {place}: {reason}"
    return message[:_MAX_MESSAGE_CHARACTERS]
