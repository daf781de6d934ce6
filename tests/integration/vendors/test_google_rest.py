"""Google Cloud Translation v3 and v2 over HTTP: Google's own clients, and plain HTTP requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from google.api_core import exceptions
from google.cloud import translate_v3 as google

from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server
from tests.integration.vendors.vendor_clients import (
    PARENT,
    TEXTS,
    google_rest_client,
    google_v2_client,
    http_client,
    translated,
    write_callers,
    write_glossaries,
)

KEY = new_key()
V2 = "/language/translate/v2"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def server(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    settings = {"grpc__google_translation": True, "models__glossaries_directory": write_glossaries(tmp_path)}
    async with running_server(tiny_model, **settings) as server:
        yield server


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server) as client:
        yield client


@pytest.fixture
async def guarded(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    callers = write_callers(tmp_path, {"shop": KEY})
    async with running_server(tiny_model, grpc__google_translation=True, access__callers_file=callers) as server:
        yield server


async def test_v3_client_reuses_its_connection(server: RunningServer) -> None:
    request = {"parent": PARENT, "contents": TEXTS, "source_language_code": "en", "target_language_code": "de"}
    glossary = {"glossary": f"{PARENT}/glossaries/it"}

    def call() -> list[Any]:
        client = google_rest_client(server)
        requests = [{**request, "labels": {"team": "a"}}, {**request, "glossary_config": glossary}]
        responses = [client.translate_text(request=each) for each in requests]
        languages = client.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/tiny").languages
        listed = [each.name for each in client.list_glossaries(request={"parent": PARENT, "page_size": 1})]
        return [*responses, [each.language_code for each in languages], listed]

    plain, named, languages, glossaries = await asyncio.to_thread(call)

    assert {each.model for each in plain.translations} == {f"{PARENT}/models/tiny/1"}
    assert "Velo" in named.glossary_translations[0].translated_text
    assert named.glossary_translations[0].glossary_config.glossary == glossary["glossary"]
    assert languages == ["de", "en"]
    assert glossaries == [f"{PARENT}/glossaries/both", f"{PARENT}/glossaries/it"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.detect_language(parent="projects/shop", model="x", content="A."), exceptions.BadRequest),
        (lambda c: c.get_glossary(name=f"{PARENT}/glossaries/none"), exceptions.NotFound),
        (lambda c: list(c.list_glossaries(request={"parent": PARENT, "filter": "x"})), exceptions.ServerError),
        (lambda c: c.romanize_text(parent=PARENT, contents=["A."]), exceptions.MethodNotImplemented),
        (lambda c: c.delete_glossary(name=f"{PARENT}/glossaries/it"), exceptions.MethodNotImplemented),
    ],
)
async def test_v3_client_raises_its_own_errors(
    server: RunningServer, call: Callable[[google.TranslationServiceClient], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await asyncio.to_thread(lambda: call(google_rest_client(server)))


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


@pytest.mark.parametrize("encoding", ["query", "form", "json", "post query", "override", "mixed"])
async def test_v2_accepts_parameters_in_each_encoding(
    server: RunningServer, http: httpx.AsyncClient, encoding: str
) -> None:
    fields = [("q", TEXTS[0]), ("q", TEXTS[1]), ("target", "de"), ("source", "en"), ("format", "text")]
    query = urlencode(fields)
    as_json = {"q": list(TEXTS), "target": "de", "source": "en", "format": "text"}
    requests: dict[str, dict[str, Any]] = {
        "query": {"method": "GET", "url": f"{V2}?{query}"},
        "form": {"method": "POST", "url": V2, "content": query, "headers": FORM},
        "json": {"method": "POST", "url": V2, "json": as_json},
        "post query": {"method": "POST", "url": f"{V2}?{query}"},
        "override": {
            "method": "POST",
            "url": V2,
            "content": query,
            "headers": {**FORM, "x-http-method-override": "GET"},
        },
        "mixed": {
            "method": "POST",
            "url": f"{V2}?{urlencode(fields[1:])}",
            "content": urlencode(fields[:1]),
            "headers": FORM,
        },
    }

    response = await http.request(**requests[encoding])

    texts = TEXTS[::-1] if encoding == "mixed" else TEXTS
    items = response.json()["data"]["translations"]
    assert [each["translatedText"] for each in items] == await translated(server, *texts)


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


async def test_key_is_accepted_in_header_and_query(guarded: RunningServer) -> None:
    fields = {"q": "A.", "target": "de", "source": "en"}

    def call() -> list[int]:
        return [
            len(google_rest_client(guarded, KEY).get_supported_languages(parent=PARENT).languages),
            len(google_v2_client(guarded, KEY).translate(list(TEXTS), target_language="de", source_language="en")),
        ]

    assert await asyncio.to_thread(call) == [2, 2]
    async with http_client(guarded) as http:
        responses = [
            await http.post(V2, params={"key": KEY}, json=fields),
            await http.get(V2, params={**fields, "key": KEY}),
            await http.get(f"/v3/{PARENT}/supportedLanguages", params={"key": KEY}),
            await http.post(V2, json=fields, headers={"authorization": f"Bearer {KEY}"}),
        ]
    assert [response.status_code for response in responses] == [200] * 4


@pytest.mark.parametrize(
    ("path", "status", "code", "reason", "info"),
    [
        (f"{V2}?key=dgm_0123456789ab_{'x' * 43}", 400, "INVALID_ARGUMENT", "keyInvalid", "API_KEY_INVALID"),
        (V2, 401, "UNAUTHENTICATED", "required", "UNAUTHENTICATED"),
        (f"{V2}/detect?key=x", 400, "INVALID_ARGUMENT", "keyInvalid", "API_KEY_INVALID"),
        (f"/v3/{PARENT}:translateText?key=x", 401, "UNAUTHENTICATED", "required", "UNAUTHENTICATED"),
    ],
)
async def test_invalid_key_is_rejected_before_the_body_is_read(
    guarded: RunningServer, path: str, status: int, code: str, reason: str, info: str
) -> None:
    def post_without_body() -> tuple[int, Any]:
        with contextlib.closing(HTTPConnection("127.0.0.1", guarded.ports.http_port, timeout=PATIENCE_S)) as connection:
            connection.request("POST", path, None, {"content-type": "application/json", "content-length": "100"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())["error"]

    answered, error = await asyncio.to_thread(post_without_body)

    assert (answered, error["status"]) == (status, code)
    assert (error["errors"][0]["reason"], error["details"][0]["reason"]) == (reason, info)
    assert "metadata" not in error["message"]


async def test_google_apis_are_disabled_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server, http_client(server) as http:
        for path in (V2, f"/v3/{PARENT}:translateText"):
            assert (await http.post(path, json={})).status_code == 404
