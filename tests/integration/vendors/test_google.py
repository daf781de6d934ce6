"""Google Cloud Translation v3 over gRPC and HTTP and v2 over HTTP, with Google's own clients and plain requests."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx
import pytest
from google.api_core import exceptions
from google.cloud import translate_v3 as google
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError
from tests.integration.running_server import RunningServer, described_service, http_client, running_server
from tests.integration.vendors.vendor_clients import (
    PARENT,
    TEXTS,
    google_grpc_client,
    google_rest_client,
    google_v2_client,
    translated,
)

Client = google.TranslationServiceClient
Result = TypeVar("Result")

V2 = "/language/translate/v2"
FORM = {"content-type": "application/x-www-form-urlencoded"}
IT = f"{PARENT}/glossaries/it"
REQUEST = {
    "parent": PARENT,
    "contents": TEXTS,
    "source_language_code": "en",
    "target_language_code": "de",
    "mime_type": "text/plain",
}


class V3:
    """Google's client over one of its transports."""

    def __init__(self, server: RunningServer, make: Callable[[RunningServer], Client]) -> None:
        self._server = server
        self._make = make

    async def call(self, call: Callable[[Client], Result]) -> Result:
        return await asyncio.to_thread(lambda: call(self._make(self._server)))

    async def translate(self, **change: Any) -> google.TranslateTextResponse:
        response: google.TranslateTextResponse = await self.call(
            lambda client: client.translate_text(request={**REQUEST, **change})
        )
        return response


@pytest.fixture(params=[google_grpc_client, google_rest_client], ids=["gRPC", "REST"])
def v3(server: RunningServer, request: pytest.FixtureRequest) -> V3:
    return V3(server, request.param)


@pytest.mark.parametrize(
    ("mime_type", "text_format"),
    [("text/plain", pb.TEXT_FORMAT_PLAIN), ("text/html", pb.TEXT_FORMAT_HTML), ("", pb.TEXT_FORMAT_HTML)],
)
async def test_mime_type_selects_the_format(
    server: RunningServer, v3: V3, mime_type: str, text_format: pb.TextFormat
) -> None:
    texts = ["<p>A &amp; b</p>", *TEXTS]
    num_before = server.sample("dragoman_requests_total", method="Translate", status="OK")

    response = await v3.translate(contents=texts, mime_type=mime_type, labels={"team": "a"})

    expected = await translated(server, *texts, format=text_format)
    assert [each.translated_text for each in response.translations] == expected
    assert {each.model for each in response.translations} == {f"{PARENT}/models/tiny/1"}
    assert server.sample("dragoman_requests_total", method="Translate", status="OK") == num_before + 2


@pytest.mark.parametrize("model", ["general/nmt", "tiny", "tiny/1"])
async def test_model_and_glossary_are_selected_by_name(server: RunningServer, v3: V3, model: str) -> None:
    response = await v3.translate(model=f"{PARENT}/models/{model}", glossary_config={"glossary": IT})

    assert [each.translated_text for each in response.translations] == await translated(server, *TEXTS)
    with_terms = [each.translated_text for each in response.glossary_translations]
    assert with_terms == await translated(server, *TEXTS, glossary="it")
    assert "Velo" in with_terms[0]
    assert response.glossary_translations[0].glossary_config.glossary == IT


async def test_languages_and_glossaries_are_listed_and_languages_detected(v3: V3) -> None:
    def read(client: Client) -> dict[str, Any]:
        languages = client.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/tiny").languages
        pages = client.list_glossaries(request={"parent": PARENT, "page_size": 1})
        one = client.get_glossary(name=IT)
        detections = [client.detect_language(parent=PARENT, content=text).languages for text in (TEXTS[0], "7")]
        return {
            "languages": [(each.language_code, each.support_source, each.support_target) for each in languages],
            "all": len(client.get_supported_languages(parent="projects/shop").languages),
            "glossaries": [(each.name, list(each.language_codes_set.language_codes)) for each in pages],
            "one": (one.display_name, one.language_pair.target_language_code, one.entry_count),
            "detected": [languages[0].language_code for languages in detections],
        }

    assert await v3.call(read) == {
        "languages": [("de", False, True), ("en", True, False)],
        "all": 2,
        "glossaries": [(f"{PARENT}/glossaries/both", ["en", "fr"]), (IT, [])],
        "one": ("it", "de", 2),
        "detected": ["en", "und"],
    }


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"contents": ["A."] * 129}, exceptions.BadRequest, "contents"),
        ({"mime_type": "text/rtf"}, exceptions.BadRequest, "mime_type"),
        ({"target_language_code": "ja"}, exceptions.NotFound, "target_language_code"),
        (
            {"source_language_code": "", "glossary_config": {"glossary": IT}},
            exceptions.BadRequest,
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
        ({"glossary_config": {"glossary": "it"}}, exceptions.BadRequest, "glossary"),
        (
            {"glossary_config": {"glossary": "it", "contextual_translation_enabled": True}},
            exceptions.MethodNotImplemented,
            "glossary_config.contextual_translation_enabled",
        ),
    ],
)
async def test_error_names_the_field_of_google(
    v3: V3, change: dict[str, Any], error: type[Exception], field: str
) -> None:
    with pytest.raises(error, match=f"{field}: ") as raised:
        await v3.translate(**change)

    assert raised.value.reason is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.detect_language(request={"parent": PARENT, "model": "x"}), exceptions.BadRequest),
        (lambda c: c.detect_language(parent=PARENT, content="A" * 10_001), exceptions.BadRequest),
        (lambda c: c.romanize_text(parent=PARENT, contents=["A."]), exceptions.MethodNotImplemented),
        (lambda c: c.delete_glossary(name=IT), exceptions.MethodNotImplemented),
        (lambda c: list(c.list_glossaries(request={"parent": PARENT, "filter": "x"})), exceptions.MethodNotImplemented),
        (lambda c: c.get_glossary(name=f"{PARENT}/glossaries/none"), exceptions.NotFound),
        (lambda c: c.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/none"), exceptions.NotFound),
    ],
)
async def test_unsupported_calls_fail(v3: V3, call: Callable[[Client], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await v3.call(call)


@pytest.mark.parametrize("parent", ["shop", "x/shop", "projects/shop/locations"])
async def test_invalid_parent_is_rejected_over_grpc(server: RunningServer, parent: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="parent: "):
        await V3(server, google_grpc_client).translate(parent=parent)


async def test_reflection_describes_the_grpc_service(server: RunningServer) -> None:
    name = "google.cloud.translation.v3.TranslationService"
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=name),
    ]
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]

    assert name in [service.name for service in listed.list_services_response.service]
    methods = described_service(described, name).methods
    served = ("TranslateText", "DetectLanguage", "GetSupportedLanguages", "ListGlossaries", "GetGlossary")
    assert {method.name: method.input_type.name for method in methods} == {each: f"{each}Request" for each in served}


async def test_apis_are_disabled_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server, http_client(server) as http:
        for path in (V2, f"/v3/{PARENT}:translateText"):
            assert (await http.post(path, json={})).status_code == 404
        with pytest.raises(exceptions.MethodNotImplemented):
            await V3(server, google_grpc_client).translate()


async def test_server_does_not_start_without_the_package(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dragoman_service.vendor_apis.google_grpc", None)

    with pytest.raises(ConfigError, match=r"grpc\.google_translation"):
        async with running_server(tiny_model, grpc__google_translation=True):
            pass


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/glossaries?pageSize=1", 200),
        ("/glossaries?pageSize=x", 400),
        ("/supportedLanguages?displayLanguageCode=en&%24alt=json%3Benum-encoding%3Dint&prettyPrint=false", 200),
        ("/supportedLanguages?nothing=1", 400),
        ("/supportedLanguages?fields=languages", 400),
        ("/operations/7", 501),
    ],
)
async def test_v3_resources_are_read_by_plain_requests(http: httpx.AsyncClient, path: str, status: int) -> None:
    assert (await http.get(f"/v3/{PARENT}{path}")).status_code == status


@pytest.mark.parametrize(("token", "name"), [("", "both"), ("it", "it"), ("goods-removed-since", "it"), ("last", "")])
async def test_page_of_glossaries_starts_at_its_token(http: httpx.AsyncClient, token: str, name: str) -> None:
    listed = await http.get(f"/v3/{PARENT}/glossaries?pageSize=1&pageToken={token}")

    names = [f"{PARENT}/glossaries/{name}"] if name else []
    assert [glossary["name"] for glossary in listed.json().get("glossaries", [])] == names


async def test_v2_client_translates_detects_and_lists(server: RunningServer) -> None:
    def call() -> dict[str, Any]:
        client = google_v2_client(server)
        return {
            "one": client.translate(TEXTS[0], target_language="de", source_language="en", format_="text"),
            "list": client.translate(list(TEXTS), target_language="de", format_="text", model="nmt"),
            "detected": [each["language"] for each in client.detect_language([TEXTS[0], "7"])],
            "languages": [each["language"] for each in client.get_languages()],
        }

    answers = await asyncio.to_thread(call)

    expected = await translated(server, *TEXTS)
    assert answers["one"] == {"translatedText": expected[0], "input": TEXTS[0]}
    assert {(each["detectedSourceLanguage"], each["model"]) for each in answers["list"]} == {("en", "tiny/1")}
    assert answers["detected"] == ["en", "und"]
    assert answers["languages"] == ["de", "en"]


async def test_v2_accepts_parameters_in_each_encoding(server: RunningServer, http: httpx.AsyncClient) -> None:
    texts = [("q", text) for text in TEXTS]
    rest = {"target": "de", "source": "en", "format": "text"}
    query, options = urlencode([*texts, *rest.items()]), urlencode(rest)
    override = {**FORM, "x-http-method-override": "GET"}

    responses = [
        await http.get(f"{V2}?{query}"),
        await http.post(f"{V2}?{query}"),
        await http.post(V2, content=query, headers=FORM),
        await http.post(V2, content=query, headers=override),
        await http.post(V2, json={"q": list(TEXTS), **rest}),
        await http.post(f"{V2}?{urlencode(texts[1:])}&{options}", content=urlencode(texts[:1]), headers=FORM),
    ]

    expected = await translated(server, *TEXTS)
    items = [[each["translatedText"] for each in response.json()["data"]["translations"]] for response in responses]
    assert items == [*[expected] * 5, expected[::-1]]


async def test_v2_query_holds_128_texts_and_empty_ones(http: httpx.AsyncClient) -> None:
    query = urlencode([("q", "")] + [("q", "A.")] * 127 + [("target", "de"), ("source", "en"), ("key", "x")])

    items = (await http.get(f"{V2}?{query}")).json()["data"]["translations"]

    assert (len(items), items[0]["translatedText"], bool(items[1]["translatedText"])) == (128, "", True)


async def test_v2_texts_are_html_by_default(server: RunningServer, http: httpx.AsyncClient) -> None:
    text = "<p>A &amp; b</p>"
    response = await http.post(V2, json={"q": text, "target": "de", "source": "en"})

    (expected,) = await translated(server, text, format="TEXT_FORMAT_HTML")
    assert response.json()["data"]["translations"] == [{"translatedText": expected}]


@pytest.mark.parametrize("model", ["tiny/1", f"{PARENT}/models/tiny", "base"])
async def test_v2_accepts_models_of_the_server(http: httpx.AsyncClient, model: str) -> None:
    response = await http.post(V2, json={"q": "A.", "target": "de", "source": "en", "model": model})

    assert response.json()["data"]["translations"][0]["model"] == "tiny/1"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"url": V2, "json": {"q": "A.", "target": "ja", "source": "en"}}, 404, "NOT_FOUND"),
        ({"url": V2, "json": {"q": "A.", "target": "de", "source": "en", "model": "none"}}, 404, "NOT_FOUND"),
        ({"url": V2, "content": "q=A.", "headers": {"content-type": "text/plain"}}, 415, "INVALID_ARGUMENT"),
        ({"url": f"{V2}?target=de", "json": {"q": "A.", "target": "en"}}, 400, "INVALID_ARGUMENT"),
        ({"url": f"{V2}?{'x=1&' * 300}"}, 400, "INVALID_ARGUMENT"),
        ({"url": f"{V2}?q=%ff"}, 400, "INVALID_ARGUMENT"),
        ({"url": f"{V2}?key=a&key=b&q=A.&target=de"}, 400, "INVALID_ARGUMENT"),
        ({"url": f"{V2}/other"}, 404, "NOT_FOUND"),
    ],
)
async def test_v2_errors_have_the_status_of_google(
    http: httpx.AsyncClient, request_: dict[str, Any], status: int, code: str
) -> None:
    response = await http.post(**request_)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["status"]) == (status, status, code)
