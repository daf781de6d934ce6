"""Work on uploaded documents: read, translate and write files within the limits of the settings."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Final
from weakref import WeakValueDictionary

from dragoman.documents.content import FileSegment
from dragoman.documents.formats import FORMATS
from dragoman_service.calls import error_mapping
from dragoman_service.calls.flow_control import ConcurrencyLimiter
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    InvalidFieldError,
    RateLimitedError,
    RequestError,
    RetryableError,
)
from dragoman_service.file_translation.parser import DocumentError, FileParser
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.file_translation.store import (
    HEARTBEAT_S,
    INTERRUPTED,
    DocumentNotFoundError,
    DocumentState,
    DocumentStatus,
    DocumentStore,
    StorageFullError,
)
from dragoman_service.file_translation.texts import TextTranslator
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import TranslationRequest
from dragoman_service.threads import call_in_daemon
from dragoman_service.translation.translator import Translator

log = logging.getLogger(__name__)

_PROGRESS_S: Final = 1.0  # minimum time between two updates of a stored state
_BEATS_PER_SWEEP: Final = 4
_MAX_MESSAGE_CHARACTERS: Final = 500
_RESULT_BYTES: Final = 64 * 1024  # margin of the estimated size of a translated file
_ESCAPE_BYTES: Final = 6  # of an escaped character in a file, such as `\u00e4`


@cache
def supported_formats() -> tuple[str, ...]:
    """Return the extensions of the files that can be translated."""
    return tuple(suffix for suffix, file_format in FORMATS.items() if file_format.is_available)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRequest:
    """Request to translate a document."""

    suffix: str
    template: TranslationRequest  # without texts; the source language is empty if it is to be detected
    request_id: str
    count: Callable[[int], None] = lambda _: None  # called with the number of characters of a translated document


class DocumentJobs:
    """Translates the documents that this server has received, and removes expired documents."""

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
        self._maintenance: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Renew the heartbeat and remove expired documents from now on."""
        self._maintenance = asyncio.create_task(self._maintain())

    async def stop(self) -> None:
        """Stop all work; unfinished documents become interrupted."""
        self._is_stopping = True
        for upload in self._uploads:
            upload.reschedule(asyncio.get_running_loop().time())
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        if self._maintenance:
            self._maintenance.cancel()
            await asyncio.wait((self._maintenance,))
            self._maintenance = None
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
        """Start work on a queued document; the returned task raises no error."""
        task = asyncio.create_task(self._run(state, request))
        self._tasks[state.document_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(state.document_id))
        return task

    async def remove(self, document_id: str) -> None:
        """Stop work on a document of this server, and remove it."""
        if task := self._tasks.get(document_id):
            task.cancel()
            await asyncio.wait((task,))
        await asyncio.to_thread(self.store.remove, document_id)

    async def _run(self, state: DocumentState, request: DocumentRequest) -> None:
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
        except (DocumentError, RequestError, RetryableError) as error:
            message = str(error)
        except Exception as error:
            message = error_mapping.NEUTRAL_MESSAGE
            log.exception("document failed", extra={"request_id": request.request_id}, exc_info=error)
        if message:
            await asyncio.to_thread(self.store.fail, document_id, message[:_MAX_MESSAGE_CHARACTERS])
        self._metrics.documents.labels(outcome).inc()
        log.info(
            "document",
            extra={
                "caller": state.owner,
                "outcome": outcome,
                "format": request.suffix,
                "request_id": request.request_id,
                "duration_s": round(time.monotonic() - began_s, 3),
            },
        )

    async def _translate(self, state: DocumentState, request: DocumentRequest) -> None:
        document_id, store, template = state.document_id, self.store, request.template
        source, target_language = store.source_path(document_id), template.target_language
        segments = await self._parser.read(source, request.suffix, target_language)
        num_characters = sum(len(segment.text) for segment in segments)
        progress = _Progress(store, document_id)
        await progress.start(num_characters)
        translator = TextTranslator(
            translator=self._translator,
            admitted=self._limiter.admitted,
            max_timeout_s=self._grpc.max_timeout_s,
            caller=state.owner,
            on_progress=progress.add,
        )
        if segments and not template.source_language:
            language = await translator.detect_language(segments, target_language)
            template = replace(template, source_language=language)
        translations = await translator.translate(segments, template)
        failures = await asyncio.to_thread(_failures, translator, segments, translations)
        if segments and len(failures) == len(segments):
            place, reason = failures[0]
            raise DocumentError(f"no text could be translated; the first is {place}: {reason}")
        num_bytes = sum(len(translation or "") for translation in translations) * _ESCAPE_BYTES
        max_bytes = 2 * state.reserved_bytes + num_bytes + _RESULT_BYTES
        await self._reserve(document_id, state.reserved_bytes + max_bytes)
        failures += await self._parser.write(
            source, request.suffix, target_language, translations, store.result_path(document_id), max_bytes=max_bytes
        )
        await asyncio.to_thread(store.finish, document_id, message=_failure_message(failures, len(segments)))
        request.count(num_characters)

    async def _reserve(self, document_id: str, num_bytes: int) -> None:
        try:
            await asyncio.to_thread(self.store.reserve, document_id, num_bytes)
        except (StorageFullError, RateLimitedError) as error:
            raise DocumentError(f"not enough disk space for the translation: {error}") from None

    async def _maintain(self) -> None:
        reasons: list[str] = []  # logged when they change
        for beat in itertools.count():
            earlier, reasons = reasons, []
            try:
                await call_in_daemon(self.store.heartbeat, name="documents")  # the pool may be busy for longer
            except OSError as error:
                reasons.append(str(error))
            if beat % _BEATS_PER_SWEEP == 0:
                try:
                    if num_expired := await asyncio.to_thread(self.store.sweep):
                        log.info("documents expired", extra={"documents": num_expired})
                except (OSError, DragomanError) as error:
                    reasons.append(str(error))
            if reasons and reasons != earlier:
                log.warning("document directory unavailable", extra={"reason": "; ".join(reasons)})
            await asyncio.sleep(HEARTBEAT_S)


class FairSlots:
    """Slots for documents.

    A document waits for a slot of its caller first, and then for a slot of all callers, where the oldest goes first. So
    a caller with many documents does not delay the others.
    """

    def __init__(self, *, total: int, per_caller: int) -> None:
        self._slots = asyncio.Semaphore(total)
        self._per_caller = per_caller
        self._caller_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def taken(self, caller: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        caller_slots = self._caller_slots.setdefault(caller, asyncio.Semaphore(self._per_caller))
        async with caller_slots, self._slots:
            yield


class _Progress:
    """Stores the progress of a document, at most once in `_PROGRESS_S`."""

    def __init__(self, store: DocumentStore, document_id: str) -> None:
        self._store = store
        self._document_id = document_id
        self._num_done = 0
        self._stored_s = time.monotonic()

    async def start(self, num_characters: int) -> None:
        """Store the start of the translation."""
        await self._update(status=DocumentStatus.TRANSLATING, num_characters=num_characters, started_s=time.time())

    async def add(self, num_characters: int) -> None:
        """Count translated characters; DocumentNotFoundError if the document was removed."""
        self._num_done += num_characters
        if time.monotonic() - self._stored_s >= _PROGRESS_S:
            self._stored_s = time.monotonic()
            with contextlib.suppress(RetryableError):  # a full disk does not end the translation
                await self._update(num_done_characters=self._num_done)

    async def _update(self, **changes: object) -> None:
        await asyncio.to_thread(self._store.update, self._document_id, **changes)


def suffix_of(file_name: str) -> str:
    """Return the extension of a file in lower case; InvalidFieldError if such files cannot be translated."""
    suffix = PurePath(file_name).suffix.lower()
    if suffix not in supported_formats():
        raise InvalidFieldError("file", f"a {suffix[:16]!r} file", f"one of {', '.join(supported_formats())}")
    return suffix


def _failures(
    translator: TextTranslator, segments: Sequence[FileSegment], translations: Sequence[str | None]
) -> list[tuple[str, str]]:
    # Place and reason of each segment that was not translated.
    return [
        (segment.place, translator.failures[segment.format, segment.text])
        for segment, translation in zip(segments, translations, strict=True)
        if translation is None
    ]


def _failure_message(failures: list[tuple[str, str]], num_segments: int) -> str:
    # A message about segments that keep their source; empty if there are none.
    if not failures:
        return ""
    place, reason = failures[0]
    message = f"{len(failures)} of {num_segments} texts are not translated; the first is {place}: {reason}"
    return message[:_MAX_MESSAGE_CHARACTERS]
