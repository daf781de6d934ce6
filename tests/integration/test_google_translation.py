"""Google Cloud Translation v3 over gRPC: what its own client makes of the answers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import translate_v3 as google
from google.cloud.translate_v3.services.translation_service.transports import TranslationServiceGrpcTransport
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key, store
from tests.integration.running_server import RunningServer, described_service, running_server

Result = TypeVar("Result")

PARENT = "projects/shop/locations/global"
KEY = new_key()
TBX = """<tbx><conceptEntry><langSec xml:lang="en"><term>file</term></langSec>
<langSec xml:lang="fr"><term>fichier</term></langSec></conceptEntry></tbx>"""
TEXTS = ["A man rides a bicycle.", "Two children play."]
ASKED = {"parent": PARENT, "source_language_code": "en", "target_language_code": "de", "mime_type": "text/plain"}


@pytest.fixture
async def server(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\n")
    (tmp_path / "both.tbx").write_text(TBX)
    settings = {"grpc__google_translation": True, "models__glossaries_directory": tmp_path}
    async with running_server(tiny_model, **settings) as server:
        yield server


async def asked(server: RunningServer, ask: Callable[[google.TranslationServiceClient], Result]) -> Result:
    def call() -> Result:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            return ask(google.TranslationServiceClient(transport=TranslationServiceGrpcTransport(channel=channel)))

    return await asyncio.to_thread(call)


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[str]:
    response = await server.translate(*texts, options=pb.DecodingOptions(**options))
    return [one.hypotheses[0].text for one in response.translations]


@pytest.mark.parametrize(
    ("mime_type", "text_format"),
    [("text/plain", pb.TEXT_FORMAT_PLAIN), ("text/html", pb.TEXT_FORMAT_HTML), ("", pb.TEXT_FORMAT_HTML)],
)
async def test_texts_are_translated(server: RunningServer, mime_type: str, text_format: pb.TextFormat) -> None:
    request = {**ASKED, "contents": ["<p>A &amp; b</p>", *TEXTS], "mime_type": mime_type, "labels": {"team": "a"}}

    response = await asked(server, lambda client: client.translate_text(request=request))

    expected = await translated(server, "<p>A &amp; b</p>", *TEXTS, format=text_format)
    assert [one.translated_text for one in response.translations] == expected
    assert {one.model for one in response.translations} == {f"{PARENT}/models/tiny/1"}
    assert server.sample("dragoman_requests_total", method="Translate", status="OK") == 2


async def test_languages_are_detected(server: RunningServer) -> None:
    request = {**ASKED, "contents": [*TEXTS, "7", "Das ist ein schöner Tag."], "source_language_code": ""}

    def ask(client: google.TranslationServiceClient) -> list[str]:
        detected = [client.detect_language(parent=PARENT, content=text).languages[0] for text in (TEXTS[0], "7")]
        response = client.translate_text(request=request)
        assert [one.translated_text for one in response.translations[2:]] == request["contents"][2:]
        assert [bool(one.model) for one in response.translations] == [True, True, True, False]
        return [one.language_code for one in (*detected,)] + [
            one.detected_language_code for one in response.translations
        ]

    assert await asked(server, ask) == ["en", "und", "en", "en", "en", "de"]


@pytest.mark.parametrize("model", ["general/nmt", "tiny", "tiny/1"])
async def test_a_model_and_a_glossary_are_named(server: RunningServer, model: str) -> None:
    glossary = {"glossary": f"{PARENT}/glossaries/it"}
    request = {**ASKED, "contents": TEXTS, "model": f"{PARENT}/models/{model}", "glossary_config": glossary}

    response = await asked(server, lambda client: client.translate_text(request=request))

    assert [one.translated_text for one in response.translations] == await translated(server, *TEXTS)
    with_terms = [one.translated_text for one in response.glossary_translations]
    assert with_terms == await translated(server, *TEXTS, glossary="it")
    assert "Velo" in with_terms[0]
    assert response.glossary_translations[0].glossary_config.glossary == glossary["glossary"]


async def test_languages_and_glossaries_are_listed(server: RunningServer) -> None:
    def ask(client: google.TranslationServiceClient) -> dict[str, Any]:
        languages = client.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/tiny")
        pages = client.list_glossaries(request={"parent": PARENT, "page_size": 1})
        one = client.get_glossary(name=f"{PARENT}/glossaries/it")
        return {
            "languages": [(one.language_code, one.support_source, one.support_target) for one in languages.languages],
            "all": len(client.get_supported_languages(parent="projects/shop").languages),
            "glossaries": [(each.name, list(each.language_codes_set.language_codes)) for each in pages],
            "one": (one.display_name, one.language_pair.target_language_code, one.entry_count),
        }

    assert await asked(server, ask) == {
        "languages": [("de", False, True), ("en", True, False)],
        "all": 2,
        "glossaries": [(f"{PARENT}/glossaries/both", ["en", "fr"]), (f"{PARENT}/glossaries/it", [])],
        "one": ("it", "de", 1),
    }


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"contents": []}, exceptions.InvalidArgument, "contents: "),
        ({"contents": ["A."] * 129}, exceptions.InvalidArgument, "contents: "),
        ({"parent": "shop"}, exceptions.InvalidArgument, "parent: "),
        ({"mime_type": "text/rtf"}, exceptions.InvalidArgument, "mime_type: "),
        ({"target_language_code": "ja"}, exceptions.NotFound, "target_language_code: "),
        (
            {"source_language_code": "", "contents": ["A man rides.", "Bonjour tout le monde"]},
            exceptions.InvalidArgument,
            "source_language_code: is absent, and the language of text 1 seems to be fr",
        ),
        (
            {"source_language_code": "", "glossary_config": {"glossary": f"{PARENT}/glossaries/it"}},
            exceptions.InvalidArgument,
            "source_language_code",
        ),
        ({"model": f"{PARENT}/models/none"}, exceptions.NotFound, "model: none"),
        ({"model": "none"}, exceptions.InvalidArgument, "model: "),
        ({"transliteration_config": {"enable_transliteration": True}}, exceptions.MethodNotImplemented, "translit"),
        (
            {"glossary_config": {"glossary": f"{PARENT}/glossaries/none"}},
            exceptions.NotFound,
            "glossary_config.glossary: 'none' is not served here; available: both, it",
        ),
        ({"glossary_config": {"glossary": "it"}}, exceptions.InvalidArgument, "glossary: "),
        (
            {"glossary_config": {"glossary": "it", "contextual_translation_enabled": True}},
            exceptions.MethodNotImplemented,
            "contextual",
        ),
    ],
)
async def test_what_cannot_be_is_an_error_of_the_client(
    server: RunningServer, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    request = {**ASKED, "contents": TEXTS, **change}

    with pytest.raises(error, match=said) as raised:
        await asked(server, lambda client: client.translate_text(request=request))

    assert raised.value.reason is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda c: c.detect_language(parent="x", content="A."), exceptions.InvalidArgument),
        (lambda c: c.detect_language(request={"parent": PARENT, "mime_type": "x"}), exceptions.InvalidArgument),
        (
            lambda c: c.detect_language(request={"parent": PARENT, "model": f"{PARENT}/models/a"}),
            exceptions.InvalidArgument,
        ),
        (lambda c: c.romanize_text(parent=PARENT, contents=["A."]), exceptions.MethodNotImplemented),
        (lambda c: c.delete_glossary(name=f"{PARENT}/glossaries/it"), exceptions.MethodNotImplemented),
        (lambda c: list(c.list_glossaries(request={"parent": PARENT, "filter": "x"})), exceptions.MethodNotImplemented),
        (lambda c: c.get_glossary(name=f"{PARENT}/glossaries/none"), exceptions.NotFound),
        (lambda c: c.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/none"), exceptions.NotFound),
    ],
)
async def test_other_methods_are_refused(
    server: RunningServer, ask: Callable[[google.TranslationServiceClient], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await asked(server, ask)


async def test_a_key_is_asked_for_as_for_all_calls(tiny_model: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\n')
    request = {**ASKED, "contents": TEXTS}
    metadata = [("authorization", f"Bearer {KEY}")]
    settings = {"grpc__google_translation": True, "access__callers_file": callers}

    async with running_server(tiny_model, **settings) as server:
        with pytest.raises(exceptions.Unauthenticated):
            await asked(server, lambda client: client.translate_text(request=request))
        response = await asked(server, lambda client: client.translate_text(request=request, metadata=metadata))

    assert len(response.translations) == 2


async def test_reflection_lists_and_describes_the_service(server: RunningServer) -> None:
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


async def test_it_is_off_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        with pytest.raises(exceptions.MethodNotImplemented):
            await asked(server, lambda client: client.translate_text(request={**ASKED, "contents": TEXTS}))


async def test_without_its_package_the_server_does_not_start(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dragoman_service.vendor_apis.google_grpc", None)

    with pytest.raises(ConfigError, match=r"grpc\.google_translation"):
        async with running_server(tiny_model, grpc__google_translation=True):
            pass
