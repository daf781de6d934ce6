import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileSegment
from dragoman_service.datatypes import DetectedLanguage, Priority, TextHypothesis, Translation
from dragoman_service.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineError,
    InvalidFieldError,
    ModelNotFoundError,
    OverloadedError,
)
from dragoman_service.file_translation.parser import DocumentError
from dragoman_service.file_translation.texts import TextTranslator
from dragoman_service.request import RequestContext, TranslationRequest

TEMPLATE = TranslationRequest(texts=(), source_language="en", target_language="de")
OVERLOADED = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=3.0)


class FakeTranslator:
    """Translates into upper case; raises `errors` first, and an error for texts for which `error_of` returns one."""

    def __init__(self, *errors: Exception, error_of: Callable[[str], Exception | None] = lambda _: None) -> None:
        self.requests: list[tuple[TranslationRequest, RequestContext]] = []
        self.languages: tuple[DetectedLanguage, ...] = ()
        self.max_concurrent = 0
        self._num_running = 0
        self._errors = list(errors)
        self._error_of = error_of

    async def translate(self, request: TranslationRequest, context: RequestContext) -> Any:
        self.requests.append((request, context))
        self._num_running += 1
        self.max_concurrent = max(self.max_concurrent, self._num_running)
        await asyncio.sleep(0)
        self._num_running -= 1
        if self._errors:
            raise self._errors.pop(0)
        for text in request.texts:
            if error := self._error_of(text):
                raise error
        return SimpleNamespace(
            translations=[
                Translation(hypotheses=(TextHypothesis(text=text.upper(), score=0.0),), sentences=())
                for text in request.texts
            ]
        )

    async def detect_languages(
        self, texts: Sequence[str], _context: RequestContext, *, target_language: str
    ) -> list[tuple[DetectedLanguage, ...]]:
        return [self.languages]


class Bench:
    """A `TextTranslator` with fakes."""

    def __init__(self, translator: FakeTranslator) -> None:
        self.waits: list[float] = []
        self.num_done = 0
        self.translator = TextTranslator(
            translator=translator,  # type: ignore[arg-type]
            admitted=contextlib.nullcontext,
            max_timeout_s=60.0,
            caller="shop",
            on_progress=self._progress,
            sleep=AsyncMock(side_effect=self.waits.append),
            clock=lambda: 1000.0,
        )

    async def _progress(self, num_characters: int) -> None:
        self.num_done += num_characters


def segments(*texts: str) -> list[FileSegment]:
    return [FileSegment(text=text, format=TextFormat.PLAIN, place=f"line {n}") for n, text in enumerate(texts)]


async def test_equal_texts_are_translated_once_with_low_priority() -> None:
    translator = FakeTranslator()
    bench = Bench(translator)
    translated = await bench.translator.translate(segments("a", "b", "a"), TEMPLATE)

    assert translated == ["A", "B", "A"]
    ((request, context),) = translator.requests
    assert request.texts == ("a", "b")
    assert (context.priority, context.caller, context.deadline_s) == (Priority.BULK, "shop", 1060.0)
    assert bench.num_done == 2


async def test_concurrent_requests_are_limited() -> None:
    translator = FakeTranslator()
    await Bench(translator).translator.translate(segments(*map(str, range(500))), TEMPLATE)

    assert (translator.max_concurrent, len(translator.requests)) == (4, 32)


@pytest.mark.parametrize(("error", "wait_s"), [(OVERLOADED, 3.0), (DeadlineExceededError("admission"), 5.0)])
async def test_overload_is_retried(error: Exception, wait_s: float) -> None:
    bench = Bench(FakeTranslator(error, error))

    assert await bench.translator.translate(segments("a"), TEMPLATE) == ["A"]
    assert bench.waits == [wait_s, wait_s]


@pytest.mark.parametrize("error", [InvalidFieldError("texts[1]", "long", "short"), EngineError("x")])
async def test_text_that_fails_does_not_fail_the_others(error: Exception) -> None:
    bench = Bench(FakeTranslator(error_of=lambda text: error if text == "b" else None))

    translated = await bench.translator.translate(segments("a", "b", "c"), TEMPLATE)

    assert translated == ["A", None, "C"]
    assert list(bench.translator.failures) == [(TextFormat.PLAIN, "b")]


@pytest.mark.parametrize("error", [DrainingError(), ModelNotFoundError("target_language", "xx", ())])
async def test_error_of_the_whole_document_is_raised(error: Exception) -> None:
    bench = Bench(FakeTranslator(error_of=lambda _: error))

    with pytest.raises(type(error)):
        await bench.translator.translate(segments(*map(str, range(500))), TEMPLATE)


def language(tag: str, confidence: float = 0.9, *, is_served: bool = True) -> DetectedLanguage:
    return DetectedLanguage(language=tag, confidence=confidence, is_served=is_served)


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ((language("en"),), "en"),
        ((language("en", 0.2),), None),
        ((language("fr", is_served=False),), None),
        ((language("de"),), "de-AT"),
        ((), None),
    ],
)
async def test_language_of_a_document_must_be_certain(
    languages: tuple[DetectedLanguage, ...], expected: str | None
) -> None:
    translator = FakeTranslator()
    translator.languages = languages
    detecting = Bench(translator).translator.detect_language(segments("a"), "de-AT")

    if expected:
        assert await detecting == expected
    else:
        with pytest.raises(DocumentError):
            await detecting
