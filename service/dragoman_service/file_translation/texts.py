"""Translation of the texts of a document, as requests of its caller, several at a time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileSegment
from dragoman.documents.file_translator import batches
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.datatypes import Priority
from dragoman_service.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidFieldError,
    RetryableError,
    StartingError,
)
from dragoman_service.file_translation.parser import DocumentError
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.middleware.flow_control import time_limit
from dragoman_service.request import RequestRecord
from dragoman_service.translation.language_detection import MIN_CONFIDENCE
from dragoman_service.translation.translator import Translator

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


@dataclass(slots=True, kw_only=True)
class TextTranslator:
    """Translates the texts of one document."""

    translator: Translator
    admitted: Callable[[], AbstractContextManager[None]]
    """Counts a request against the limit of concurrent requests."""

    allowed_s: Callable[[float | None], float]
    caller: str
    peer: str
    request_id: str
    on_progress: Callable[[int], Awaitable[None]]
    """Gets the number of characters that were translated since the last call."""

    clock: Callable[[], float] = time.monotonic
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
        texts = [text[:_DETECTED_CHARACTERS]]
        (languages,) = await self._asked(
            lambda record: self.translator.detect_languages(texts, record, target_language=target_language)
        )
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
        try:
            wanted = conversion.from_translate_request(request)
            result = await self._asked(lambda record: self.translator.translate(wanted, record))
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
        for segment, translation in zip(batch, result.translations, strict=True):
            translated[segment.format, segment.text] = translation.hypotheses[0].text

    async def _asked(self, ask: Callable[[RequestRecord], Awaitable[Any]]) -> Any:
        """Repeat a request while the server is overloaded or the caller over its rate, until the document expires."""
        while True:
            try:
                with self.admitted():
                    allowed_s = self.allowed_s(_CALL_S)
                    async with time_limit(allowed_s):
                        return await ask(self._record(allowed_s))
            except (RetryableError, StartingError) as error:
                wait_s = max(error.retry_after_s, _MIN_WAIT_S) if isinstance(error, RetryableError) else _WAIT_S
            except DeadlineExceededError as error:
                if error.stage != "admission":
                    raise
                wait_s = _WAIT_S
            await self.sleep(wait_s)

    def _record(self, allowed_s: float) -> RequestRecord:
        return RequestRecord(
            request_id=self.request_id,
            peer=self.peer,
            caller=self.caller,
            deadline_s=self.clock() + allowed_s,
            priority=Priority.BULK,
        )
