import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileSegment
from dragoman.v1 import translation_pb2 as pb
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

TEMPLATE = pb.TranslateRequest(source_language="en", target_language="de")
OVERLOADED = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=3.0)


class Translation:
    """Translates into upper case, after raising what it is told to raise."""

    def __init__(self, *errors: Exception, refuses: Callable[[str], Exception | None] = lambda _: None) -> None:
        self.requests: list[pb.TranslateRequest] = []
        self.languages: list[pb.DetectedLanguage] = []
        self.most_at_a_time = 0
        self._num_running = 0
        self._errors = list(errors)
        self._refuses = refuses

    async def Translate(self, request: pb.TranslateRequest, call: Any) -> pb.TranslateResponse:  # noqa: N802
        self.requests.append(request)
        self._num_running += 1
        self.most_at_a_time = max(self.most_at_a_time, self._num_running)
        await asyncio.sleep(0)
        self._num_running -= 1
        if self._errors:
            raise self._errors.pop(0)
        for text in request.texts:
            if error := self._refuses(text):
                raise error
        translations = [pb.Translation(hypotheses=[pb.Hypothesis(text=text.upper())]) for text in request.texts]
        return pb.TranslateResponse(translations=translations)

    async def DetectLanguage(self, request: pb.DetectLanguageRequest, call: Any) -> pb.DetectLanguageResponse:  # noqa: N802
        return pb.DetectLanguageResponse(detections=[pb.LanguageDetection(languages=self.languages)])


class Bench:
    """A translator with fakes around it."""

    def __init__(self, translation: Translation) -> None:
        self.waits: list[float] = []
        self.num_done = 0
        self.translator = TextTranslator(
            translation=translation,  # type: ignore[arg-type]
            admitted=self._admitted,
            allowed_s=lambda _: 60.0,
            caller="shop",
            peer="ipv4:127.0.0.1:1",
            request_id="r",
            on_progress=self._progress,
            sleep=self._sleep,
        )

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        yield

    async def _progress(self, num_characters: int) -> None:
        self.num_done += num_characters

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def segments(*texts: str) -> list[FileSegment]:
    return [FileSegment(text=text, format=TextFormat.PLAIN, place=f"line {n}") for n, text in enumerate(texts)]


async def test_equal_texts_are_translated_once_and_in_bulk() -> None:
    translation = Translation()
    bench = Bench(translation)
    translated = await bench.translator.translations(segments("a", "b", "a"), TEMPLATE)

    assert translated == ["A", "B", "A"]
    (request,) = translation.requests
    assert (list(request.texts), request.priority) == (["a", "b"], pb.PRIORITY_BULK)
    assert bench.num_done == 2


async def test_requests_at_a_time_are_limited() -> None:
    translation = Translation()
    await Bench(translation).translator.translations(segments(*map(str, range(500))), TEMPLATE)

    assert (translation.most_at_a_time, len(translation.requests)) == (4, 32)


@pytest.mark.parametrize("error", [OVERLOADED, DeadlineExceededError("admission")])
async def test_overload_is_waited_for(error: Exception) -> None:
    bench = Bench(Translation(error, error))
    translated = await bench.translator.translations(segments("a"), TEMPLATE)

    assert translated == ["A"]
    assert bench.waits == [3.0, 3.0] if error is OVERLOADED else [5.0, 5.0]


@pytest.mark.parametrize("error", [InvalidFieldError("texts[1]", "long", "short"), EngineError("x")])
async def test_text_that_fails_does_not_fail_the_others(error: Exception) -> None:
    bench = Bench(Translation(refuses=lambda text: error if text == "b" else None))

    translated = await bench.translator.translations(segments("a", "b", "c"), TEMPLATE)

    assert translated == ["A", None, "C"]
    assert list(bench.translator.failures) == [(TextFormat.PLAIN, "b")]


@pytest.mark.parametrize("error", [DrainingError(), ModelNotFoundError("target_language", "xx", ())])
async def test_errors_of_the_document_end_it(error: Exception) -> None:
    bench = Bench(Translation(refuses=lambda _: error))

    with pytest.raises(type(error)):
        await bench.translator.translations(segments(*map(str, range(500))), TEMPLATE)


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ([("en", 0.9, True)], "en"),
        ([("en", 0.2, True)], None),
        ([("fr", 0.9, False)], None),
        ([("de", 0.9, True)], None),
        ([], None),
    ],
)
async def test_language_of_a_document_must_be_certain(
    languages: list[tuple[str, float, bool]], expected: str | None
) -> None:
    translation = Translation()
    translation.languages = [
        pb.DetectedLanguage(language=language, confidence=confidence, is_served=is_served)
        for language, confidence, is_served in languages
    ]
    detecting = Bench(translation).translator.detected_language(segments("a"), "de-AT")

    if expected:
        assert await detecting == expected
    else:
        with pytest.raises(DocumentError):
            await detecting
