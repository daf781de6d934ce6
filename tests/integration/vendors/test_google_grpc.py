"""Google Cloud Translation v3 over gRPC, with Google's own client."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.api_core import exceptions
from google.cloud import translate_v3 as google
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError
from tests.integration.running_server import RunningServer, described_service, running_server
from tests.integration.vendors.vendor_clients import PARENT, TEXTS, google_grpc_client, translated, write_glossaries

Result = TypeVar("Result")

REQUEST = {
    "parent": PARENT,
    "contents": TEXTS,
    "source_language_code": "en",
    "target_language_code": "de",
    "mime_type": "text/plain",
}


@pytest.fixture
async def server(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    settings = {"grpc__google_translation": True, "models__glossaries_directory": write_glossaries(tmp_path)}
    async with running_server(tiny_model, **settings) as server:
        yield server


async def with_client(server: RunningServer, call: Callable[[google.TranslationServiceClient], Result]) -> Result:
    return await asyncio.to_thread(lambda: call(google_grpc_client(server)))


@pytest.mark.parametrize(
    ("mime_type", "text_format"),
    [("text/plain", pb.TEXT_FORMAT_PLAIN), ("text/html", pb.TEXT_FORMAT_HTML), ("", pb.TEXT_FORMAT_HTML)],
)
async def test_mime_type_selects_the_format(server: RunningServer, mime_type: str, text_format: pb.TextFormat) -> None:
    request = {**REQUEST, "contents": ["<p>A &amp; b</p>", *TEXTS], "mime_type": mime_type, "labels": {"team": "a"}}

    response = await with_client(server, lambda client: client.translate_text(request=request))

    expected = await translated(server, "<p>A &amp; b</p>", *TEXTS, format=text_format)
    assert [each.translated_text for each in response.translations] == expected
    assert {each.model for each in response.translations} == {f"{PARENT}/models/tiny/1"}
    assert server.sample("dragoman_requests_total", method="Translate", status="OK") == 2


async def test_texts_without_letters_have_no_detected_language(server: RunningServer) -> None:
    def detect(client: google.TranslationServiceClient) -> list[str]:
        responses = [client.detect_language(parent=PARENT, content=text) for text in (TEXTS[0], "7")]
        return [response.languages[0].language_code for response in responses]

    assert await with_client(server, detect) == ["en", "und"]


@pytest.mark.parametrize("model", ["general/nmt", "tiny", "tiny/1"])
async def test_model_and_glossary_are_selected_by_name(server: RunningServer, model: str) -> None:
    glossary = {"glossary": f"{PARENT}/glossaries/it"}
    request = {**REQUEST, "model": f"{PARENT}/models/{model}", "glossary_config": glossary}

    response = await with_client(server, lambda client: client.translate_text(request=request))

    assert [each.translated_text for each in response.translations] == await translated(server, *TEXTS)
    with_terms = [each.translated_text for each in response.glossary_translations]
    assert with_terms == await translated(server, *TEXTS, glossary="it")
    assert "Velo" in with_terms[0]
    assert response.glossary_translations[0].glossary_config.glossary == glossary["glossary"]


async def test_languages_and_glossaries_are_listed(server: RunningServer) -> None:
    def read(client: google.TranslationServiceClient) -> dict[str, Any]:
        languages = client.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/tiny").languages
        pages = client.list_glossaries(request={"parent": PARENT, "page_size": 1})
        one = client.get_glossary(name=f"{PARENT}/glossaries/it")
        return {
            "languages": [(each.language_code, each.support_source, each.support_target) for each in languages],
            "all": len(client.get_supported_languages(parent="projects/shop").languages),
            "glossaries": [(each.name, list(each.language_codes_set.language_codes)) for each in pages],
            "one": (one.display_name, one.language_pair.target_language_code, one.entry_count),
        }

    assert await with_client(server, read) == {
        "languages": [("de", False, True), ("en", True, False)],
        "all": 2,
        "glossaries": [(f"{PARENT}/glossaries/both", ["en", "fr"]), (f"{PARENT}/glossaries/it", [])],
        "one": ("it", "de", 2),
    }


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"contents": ["A."] * 129}, exceptions.InvalidArgument, "contents"),
        ({"parent": "shop"}, exceptions.InvalidArgument, "parent"),
        ({"mime_type": "text/rtf"}, exceptions.InvalidArgument, "mime_type"),
        ({"target_language_code": "ja"}, exceptions.NotFound, "target_language_code"),
        (
            {"source_language_code": "", "glossary_config": {"glossary": f"{PARENT}/glossaries/it"}},
            exceptions.InvalidArgument,
            "source_language_code",
        ),
        ({"model": f"{PARENT}/models/none"}, exceptions.NotFound, "model"),
        (
            {"transliteration_config": {"enable_transliteration": True}},
            exceptions.MethodNotImplemented,
            "transliteration_config",
        ),
        (
            {"glossary_config": {"glossary": f"{PARENT}/glossaries/none"}},
            exceptions.NotFound,
            "glossary_config.glossary",
        ),
        ({"glossary_config": {"glossary": "it"}}, exceptions.InvalidArgument, "glossary"),
        (
            {"glossary_config": {"glossary": "it", "contextual_translation_enabled": True}},
            exceptions.MethodNotImplemented,
            "glossary_config.contextual_translation_enabled",
        ),
    ],
)
async def test_error_names_the_field_of_google(
    server: RunningServer, change: dict[str, Any], error: type[Exception], field: str
) -> None:
    with pytest.raises(error, match=f"{field}: ") as raised:
        await with_client(server, lambda client: client.translate_text(request={**REQUEST, **change}))

    assert raised.value.reason is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.detect_language(parent="x", content="A."), exceptions.InvalidArgument),
        (
            lambda c: c.detect_language(request={"parent": PARENT, "model": f"{PARENT}/models/a"}),
            exceptions.InvalidArgument,
        ),
        (lambda c: c.detect_language(parent=PARENT, content="A" * 10_001), exceptions.InvalidArgument),
        (lambda c: c.romanize_text(parent=PARENT, contents=["A."]), exceptions.MethodNotImplemented),
        (lambda c: c.delete_glossary(name=f"{PARENT}/glossaries/it"), exceptions.MethodNotImplemented),
        (lambda c: list(c.list_glossaries(request={"parent": PARENT, "filter": "x"})), exceptions.MethodNotImplemented),
        (lambda c: c.get_glossary(name=f"{PARENT}/glossaries/none"), exceptions.NotFound),
        (lambda c: c.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/none"), exceptions.NotFound),
    ],
)
async def test_unsupported_calls_fail(
    server: RunningServer, call: Callable[[google.TranslationServiceClient], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await with_client(server, call)


async def test_reflection_describes_the_service(server: RunningServer) -> None:
    name = "google.cloud.translation.v3.TranslationService"
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=name),
    ]
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]

    assert name in [service.name for service in listed.list_services_response.service]
    service = described_service(described, name)
    assert {method.name: method.input_type.name for method in service.methods} == {
        "TranslateText": "TranslateTextRequest",
        "DetectLanguage": "DetectLanguageRequest",
        "GetSupportedLanguages": "GetSupportedLanguagesRequest",
        "ListGlossaries": "ListGlossariesRequest",
        "GetGlossary": "GetGlossaryRequest",
    }


async def test_service_is_disabled_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        with pytest.raises(exceptions.MethodNotImplemented):
            await with_client(server, lambda client: client.translate_text(request=REQUEST))


async def test_server_does_not_start_without_the_package(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dragoman_service.vendor_apis.google_grpc", None)

    with pytest.raises(ConfigError, match=r"grpc\.google_translation"):
        async with running_server(tiny_model, grpc__google_translation=True):
            pass
