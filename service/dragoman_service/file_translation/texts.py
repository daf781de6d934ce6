"""Translation of the texts of a document, as requests of its caller, several at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from dragoman.client.enums import TextFormat as FileTextFormat
from dragoman.documents.content import FileSegment
from dragoman.documents.file_translator import batches
from dragoman_service.calls import error_mapping
from dragoman_service.calls.flow_control import time_limit
from dragoman_service.datatypes import Priority
from dragoman_service.errors import DeadlineExceededError, EngineError, RequestError, RetryableError, StartingError
from dragoman_service.file_translation.parser import DocumentError
from dragoman_service.language_tags import is_same_language
from dragoman_service.request import RequestContext, TextFormat, TranslationRequest
from dragoman_service.translation.language_detection import MIN_CONFIDENCE
from dragoman_service.translation.translator import Translator

_NUM_CONCURRENT_REQUESTS: Final = 4  # of one document
_REQUEST_TIMEOUT_S: Final = 120.0  # requested time limit of each request
_MIN_RETRY_S: Final = 0.5
_RETRY_S: Final = 5.0  # if the error has no delay
_DETECTION_CHARACTERS: Final = 2000  # from the beginning of a document

_Text = tuple[FileTextFormat, str]  # segments with equal format and text are translated once
_Result = TypeVar("_Result")


@dataclass(slots=True, kw_only=True)
class TextTranslator:
    """Translates the texts of one document."""

    translator: Translator
    admitted: Callable[[], AbstractContextManager[None]]  # counts against the limit of concurrent requests
    max_timeout_s: float  # of a request
    caller: str
    on_progress: Callable[[int], Awaitable[None]]  # called with the number of further translated characters
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    failures: dict[_Text, str] = field(default_factory=dict)  # reasons why texts have no translation

    async def detect_language(self, segments: Sequence[FileSegment], target_language: str) -> str:
        """Return the language of a document.

        Raises:
            DocumentError: if the language is not served or cannot be determined.
        """
        text = ""
        for segment in segments:
            if len(text) >= _DETECTION_CHARACTERS:
                break
            text += segment.text[:_DETECTION_CHARACTERS] + "\n"
        texts = [text[:_DETECTION_CHARACTERS]]
        (languages,) = await self._retried(
            lambda context: self.translator.detect_languages(texts, context, target_language=target_language)
        )
        if not languages:
            raise DocumentError("the source language cannot be detected; specify it")
        best = languages[0]
        if is_same_language(best.language, target_language):
            return target_language
        if not best.is_served or best.confidence < MIN_CONFIDENCE:
            raise DocumentError(
                f"detected language {best.language!r} (confidence {best.confidence:.2f}) is uncertain or not served; "
                "specify a served source language"
            )
        return best.language

    async def translate(self, segments: Sequence[FileSegment], template: TranslationRequest) -> list[str | None]:
        """Return the translation of each segment, or None where `failures` has the reason.

        Raises:
            DragomanError: if no text of the document can be translated, for example because no model is served.
        """
        unique = await asyncio.to_thread(lambda: {(each.format, each.text): each for each in segments})
        translated: dict[_Text, str] = {}
        remaining = batches(unique.values())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_NUM_CONCURRENT_REQUESTS):
                    group.create_task(self._translate_batches(remaining, template, translated))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return await asyncio.to_thread(lambda: [translated.get((each.format, each.text)) for each in segments])

    async def _translate_batches(
        self, remaining: Iterator[list[FileSegment]], template: TranslationRequest, translated: dict[_Text, str]
    ) -> None:
        for batch in remaining:
            await self._translate_batch(batch, template, translated)
            await self.on_progress(sum(len(segment.text) for segment in batch))

    async def _translate_batch(
        self, batch: Sequence[FileSegment], template: TranslationRequest, translated: dict[_Text, str]
    ) -> None:
        """Translate texts together, or one by one if an error may be caused by one of them."""
        options = replace(template.options, format=TextFormat[batch[0].format.name])
        request = replace(template, texts=tuple(segment.text for segment in batch), options=options)
        try:
            result = await self._retried(lambda context: self.translator.translate(request, context))
        except (RequestError, EngineError, DeadlineExceededError) as error:
            if isinstance(error, RequestError) and not error.field.startswith("texts"):
                raise
            if len(batch) > 1:
                for segment in batch:
                    await self._translate_batch([segment], template, translated)
                return
            reason = error.description if isinstance(error, RequestError) else error_mapping.to_rpc_error(error).message
            self.failures[batch[0].format, batch[0].text] = reason
            return
        for segment, translation in zip(batch, result.translations, strict=True):
            translated[segment.format, segment.text] = translation.hypotheses[0].text

    async def _retried(self, request: Callable[[RequestContext], Awaitable[_Result]]) -> _Result:
        """Repeat a request while the server is overloaded or the caller exceeds its rate limit."""
        while True:
            try:
                with self.admitted():
                    allowed_s = min(_REQUEST_TIMEOUT_S, self.max_timeout_s)
                    async with time_limit(allowed_s):
                        return await request(self._context(allowed_s))
            except (RetryableError, StartingError) as error:
                wait_s = max(error.retry_after_s, _MIN_RETRY_S) if isinstance(error, RetryableError) else _RETRY_S
            except DeadlineExceededError as error:
                if error.stage != "admission":
                    raise
                wait_s = _RETRY_S
            await self.sleep(wait_s)

    def _context(self, allowed_s: float) -> RequestContext:
        return RequestContext(caller=self.caller, deadline_s=self.clock() + allowed_s, priority=Priority.BULK)
