"""Counts of warnings in headers and in the access log, with a translator whose translations have warnings."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from google.cloud import translate_v3 as google

from dragoman_service.datatypes import (
    Span,
    StageTimings,
    TextHypothesis,
    Translation,
    TranslationResult,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.observability.usage import UsageRecord
from dragoman_service.request import FixedSpan, TranslationRequest
from dragoman_service.translation.translator import Translator
from tests.captured_logs import capture_logs
from tests.integration.running_server import RunningServer
from tests.integration.vendors.vendor_clients import PARENT, PATHS, body_of, google_grpc_client

HEADER = "x-dragoman-warnings"
COUNTS = "NUMBER_CHANGED=2, TRUNCATED=1"
KINDS = (WarningKind.TRUNCATED, WarningKind.NUMBER_CHANGED, WarningKind.NUMBER_CHANGED)

NATIVE = {"texts": ["A secret 7."], "sourceLanguage": "en", "targetLanguage": "de"}


class FakeTranslations:
    """Answers each text with itself in capital letters, and records the requests."""

    def __init__(self, *kinds: WarningKind) -> None:
        self.requests: list[TranslationRequest] = []
        span = Span(start=2, end=8)
        self._warnings = tuple(
            TranslationWarning(kind=kind, message="secret", sentence_index=None, source=span, target=span)
            for kind in kinds
        )

    async def translate(self, request: TranslationRequest, usage: UsageRecord) -> TranslationResult:
        self.requests.append(request)
        usage.add_texts(request.texts)
        translations = [
            Translation(hypotheses=(TextHypothesis(text=text.upper(), score=0.0),), sentences=())
            for text in request.texts
        ]
        result = TranslationResult(
            translations=(replace(translations[0], warnings=self._warnings), *translations[1:]),
            model_name="tiny",
            model_version="1",
            timings=StageTimings(),
            num_source_tokens=1,
            num_target_tokens=1,
        )
        usage.add_result(result)
        return result


def install(monkeypatch: pytest.MonkeyPatch, *kinds: WarningKind) -> FakeTranslations:
    translations = FakeTranslations(*kinds)
    monkeypatch.setattr(
        Translator, "translate", lambda _self, request, _context, usage: translations.translate(request, usage)
    )
    return translations


@pytest.mark.parametrize("api", ["native", *PATHS])
async def test_responses_have_the_number_of_warnings_of_each_kind(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    path, body = ("/v1/translate", NATIVE) if api == "native" else (PATHS[api], body_of(api, "A secret 7."))
    install(monkeypatch)
    without = await http.post(path, json=body)
    install(monkeypatch, *KINDS)
    answer = await http.post(path, json=body)

    assert (answer.status_code, answer.headers[HEADER]) == (200, COUNTS)
    assert HEADER not in without.headers
    if api != "native":
        assert answer.json() == without.json()


async def test_warnings_of_all_targets_are_added_up(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *KINDS)

    answer = await http.post("/translate?api-version=3.0&from=en&to=de&to=de-AT", json=[{"Text": "A."}, {"Text": "B."}])

    assert answer.headers[HEADER] == "NUMBER_CHANGED=4, TRUNCATED=2"


async def test_errors_have_no_counts(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *KINDS)

    answer = await http.post("/v2/translate", json={"text": 7, "target_lang": "DE"})

    assert (answer.status_code, HEADER in answer.headers) == (400, False)


async def test_metadata_of_grpc_has_the_counts(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *KINDS)

    def call() -> tuple[str, dict[str, Any]]:
        request = google.TranslateTextRequest(
            parent=PARENT, contents=["A."], source_language_code="en", target_language_code="de"
        )
        transport: Any = google_grpc_client(server).transport
        response, finished = transport.translate_text.with_call(request)
        return response.translations[0].translated_text, dict(finished.trailing_metadata())

    text, metadata = await asyncio.to_thread(call)

    assert (text, metadata[HEADER]) == ("A.", COUNTS)


async def test_access_log_has_counts_without_texts(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *KINDS)
    with capture_logs() as events:
        await http.post("/v2/translate", json=body_of("deepl", "A secret 7."))
        install(monkeypatch)
        await http.post("/v2/translate", json=body_of("deepl", "A secret 7."))
        await asyncio.sleep(0)

    first, second = (event for event in events if event["event"] == "request")
    assert first["warnings"] == {"number_changed": 2, "truncated": 1}
    assert "warnings" not in second
    assert "secret" not in str(first).lower()


@pytest.mark.parametrize("text_type", ["plain", "html"])
async def test_azure_passes_the_dynamic_dictionary_as_fixed_spans(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, text_type: str
) -> None:
    translations = install(monkeypatch)
    marked = 'The <mstrans:dictionary translation="wordomatic">word</mstrans:dictionary> is new.'
    path = f"/translate?api-version=3.0&from=en&to=de&textType={text_type}&includeSentenceLength=true"

    answer = await http.post(path, json=[{"Text": "A."}, {"Text": marked}])

    (request,) = translations.requests
    assert request.texts == ("A.", "The word is new.")
    assert request.fixed_spans == ((), (FixedSpan(span=Span(start=4, end=8), target="wordomatic"),))
    translation = answer.json()[1]["translations"][0]
    assert translation["text"] == "THE WORD IS NEW."
    assert translation["sentLen"]["srcSentLen"] == [len(marked)]
    assert answer.headers["x-metered-usage"] == str(2 + len(marked))


async def test_azure_keeps_fixed_spans_with_their_texts_when_languages_are_detected(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    translations = install(monkeypatch)
    texts = [
        "7",
        'The <mstrans:dictionary translation="X">weather</mstrans:dictionary> is very nice today.',
        "Where is the station, please?",
    ]

    await http.post("/translate?api-version=3.0&to=de", json=[{"Text": text} for text in texts])

    spans = {
        text[each.span.start : each.span.end]: each.target
        for request in translations.requests
        for text, fixed in zip(request.texts, request.fixed_spans, strict=True)
        for each in fixed
    }
    assert spans == {"weather": "X"}
