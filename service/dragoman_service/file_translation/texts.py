"""Translation of the texts of a document, as requests of its caller, several at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from dragoman.enums import TextFormat
from dragoman.files.content import FileSegment
from dragoman.files.job import batches
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidFieldError,
    RetryableError,
    StartingError,
)
from dragoman_service.file_translation.parser import DocumentError
from dragoman_service.grpc_api.servicer import TranslationServicer, ended_after
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.call import Call
from dragoman_service.observability.tracing import RequestTrace
from dragoman_service.request import AccessRecord
from dragoman_service.translation.language_detection import MIN_CONFIDENCE

log = logging.getLogger(__name__)

_NUM_CALLS: Final = 4
"""Requests of one document at a time."""

_CALL_S: Final = 120.0
_MIN_WAIT_S: Final = 0.5
_WAIT_S: Final = 5.0
"""Before a request is repeated, if the error does not say."""

_DETECTED_CHARACTERS: Final = 2000
"""From the beginning of a document, for detecting its language."""

_FORMATS: Final = {
    TextFormat.PLAIN: pb.TEXT_FORMAT_PLAIN,
    TextFormat.HTML: pb.TEXT_FORMAT_HTML,
    TextFormat.XML: pb.TEXT_FORMAT_XML,
}

_Text = tuple[TextFormat, str]
"""Format and text of segments; equal ones are translated once."""


class BackgroundContext:
    """The context of calls that a server makes for a caller after it has answered it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        """Return the address from which the document came."""
        return self._peer

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return nothing."""
        return ()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return nothing: the caller was authenticated when it uploaded the document."""
        return {}

    def time_remaining(self) -> float | None:
        """Return the time allowed to one call."""
        return _CALL_S

    async def read(self) -> Any:
        """There is no message to read."""
        raise NotImplementedError

    async def send_initial_metadata(self, _metadata: tuple[()], /) -> None:
        """There is no stream to begin."""
        raise NotImplementedError

    async def write(self, raw_response: bytes, /) -> None:
        """There is no stream to write to."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class TextTranslator:
    """Translates the texts of one document."""

    translation: TranslationServicer
    admitted: Callable[[], AbstractContextManager[None]]
    """Counts a request against the limit of concurrent requests."""

    allowed_s: Callable[[float | None], float]
    caller: str
    peer: str
    request_id: str
    on_progress: Callable[[int], Awaitable[None]]
    """Gets the number of characters that were translated since the last call."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    failures: dict[_Text, str] = field(default_factory=dict)
    """Why texts have no translation."""

    async def detected_language(self, segments: Sequence[FileSegment], target_language: str) -> str:
        """Return the language of a document.

        Raises:
            DocumentError: if it is not served, is the target language or cannot be determined.
        """
        text = ""
        for segment in segments:
            if len(text) >= _DETECTED_CHARACTERS:
                break
            text += segment.text[:_DETECTED_CHARACTERS] + "\n"
        request = pb.DetectLanguageRequest(texts=[text[:_DETECTED_CHARACTERS]], target_language=target_language)
        response = await self._asked(lambda call: self.translation.DetectLanguage(request, call))
        languages = response.detections[0].languages
        if not languages:
            raise DocumentError("the source language cannot be detected: specify it")
        likeliest = languages[0]
        if likeliest.language.partition("-")[0] == target_language.partition("-")[0].lower():
            raise DocumentError(f"source and target language are equal: the document is in {likeliest.language!r}")
        if not likeliest.is_served or likeliest.confidence < MIN_CONFIDENCE:
            raise DocumentError(
                f"the document seems to be in {likeliest.language!r} (confidence {likeliest.confidence:.2f}), which is "
                "not served or not certain: specify a served source language"
            )
        return str(likeliest.language)

    async def translations(self, segments: Sequence[FileSegment], template: pb.TranslateRequest) -> list[str | None]:
        """Return the translation of each segment, or None where `failures` says why there is none.

        Raises:
            DragomanError: if no text of the document can be translated, such as by a model that is not served.
        """
        different = await asyncio.to_thread(lambda: {(each.format, each.text): each for each in segments})
        translated: dict[_Text, str] = {}
        remaining = batches(different.values())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_NUM_CALLS):
                    group.create_task(self._work(remaining, template, translated))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return await asyncio.to_thread(lambda: [translated.get((each.format, each.text)) for each in segments])

    async def _work(
        self, remaining: Iterator[list[FileSegment]], template: pb.TranslateRequest, translated: dict[_Text, str]
    ) -> None:
        for batch in remaining:
            await self._translate(batch, template, translated)
            await self.on_progress(sum(len(segment.text) for segment in batch))

    async def _translate(
        self, batch: Sequence[FileSegment], template: pb.TranslateRequest, translated: dict[_Text, str]
    ) -> None:
        """Translate texts together, or one by one if one of them may be the cause of an error."""
        request = pb.TranslateRequest()
        request.CopyFrom(template)
        request.texts[:] = [segment.text for segment in batch]
        request.options.format = _FORMATS[batch[0].format]
        request.priority = pb.PRIORITY_BULK
        try:
            response = await self._asked(lambda call: self.translation.Translate(request, call))
        except (InvalidFieldError, EngineError, DeadlineExceededError) as error:
            if isinstance(error, InvalidFieldError) and not error.field.startswith("texts"):
                raise
            if len(batch) > 1:
                for segment in batch:
                    await self._translate([segment], template, translated)
                return
            reason = error.description if isinstance(error, InvalidFieldError) else error_mapping.answer(error).message
            self.failures[batch[0].format, batch[0].text] = reason
            return
        for segment, translation in zip(batch, response.translations, strict=True):
            translated[segment.format, segment.text] = translation.hypotheses[0].text

    async def _asked(self, ask: Callable[[Call], Awaitable[Any]]) -> Any:
        """Repeat a request while the server is overloaded or the caller over its rate, until the document expires."""
        while True:
            try:
                with self.admitted():
                    async with ended_after(self.allowed_s(_CALL_S)):
                        return await ask(self._call())
            except (RetryableError, StartingError) as error:
                wait_s = max(error.retry_after_s, _MIN_WAIT_S) if isinstance(error, RetryableError) else _WAIT_S
            except DeadlineExceededError as error:
                if error.stage != "admission":
                    raise
                wait_s = _WAIT_S
            await self.sleep(wait_s)

    def _call(self) -> Call:
        return Call(
            context=BackgroundContext(self.peer),
            path="",
            request_id=self.request_id,
            caller=self.caller,
            trace=RequestTrace(),
            access_record=AccessRecord(),
            started_s=0.0,
            is_limited=True,
            is_admitted=True,
        )
