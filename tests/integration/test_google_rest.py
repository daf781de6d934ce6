"""Google Cloud Translation v3 and v2 over HTTP: the unmodified clients of Google, and plain HTTP requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
from google.api_core import exceptions
from google.auth import api_key
from google.auth.credentials import AnonymousCredentials
from google.cloud import translate_v2  # type: ignore[attr-defined]
from google.cloud import translate_v3 as google

from dragoman_service.security.api_keys import new_key, store
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server

Result = TypeVar("Result")

PARENT = "projects/shop/locations/global"
KEY = new_key()
TEXTS = ["A man rides a bicycle.", "Two children play."]
ASKED = {"parent": PARENT, "source_language_code": "en", "target_language_code": "de", "mime_type": "text/plain"}
V2 = "/language/translate/v2"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def server(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\n")
    settings = {"grpc__google_translation": True, "models__glossaries_directory": tmp_path}
    async with running_server(tiny_model, **settings) as server:
        yield server


@pytest.fixture
async def guarded(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    callers = tmp_path / "callers.toml"
    callers.write_text(f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\n')
    async with running_server(tiny_model, grpc__google_translation=True, access__callers_file=callers) as server:
        yield server


def address(server: RunningServer) -> str:
    return f"http://127.0.0.1:{server.ports.http_port}"


def v3_client(server: RunningServer, key: str = "") -> google.TranslationServiceClient:
    options = {"api_endpoint": address(server), **({"api_key": key} if key else {})}
    credentials = None if key else AnonymousCredentials()  # type: ignore[no-untyped-call]
    return google.TranslationServiceClient(transport="rest", client_options=options, credentials=credentials)


def v2_client(server: RunningServer, key: str = "") -> Any:
    credentials = api_key.Credentials(key) if key else AnonymousCredentials()  # type: ignore[no-untyped-call]
    return translate_v2.Client(credentials=credentials, client_options={"api_endpoint": address(server)})


async def sent(
    server: RunningServer, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    def send() -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", server.ports.http_port, timeout=PATIENCE_S)
        raw = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        connection.request(method, path, raw, {"content-type": "application/json"} if headers is None else headers)
        response = connection.getresponse()
        answered = json.loads(response.read())
        connection.close()
        return response.status, answered

    return await asyncio.to_thread(send)


async def best(server: RunningServer, *texts: str, **options: Any) -> list[str]:
    response = await server.translate(*texts, **options)
    return [one.hypotheses[0].text for one in response.translations]


async def test_v3_client_translates_several_requests_on_one_connection(server: RunningServer) -> None:
    glossary = {"glossary": f"{PARENT}/glossaries/it"}
    detecting = {**ASKED, "contents": TEXTS, "source_language_code": "", "mime_type": ""}
    naming = {**ASKED, "contents": TEXTS, "model": f"{PARENT}/models/tiny/1", "glossary_config": glossary}

    def ask() -> list[Any]:
        client = v3_client(server)
        requests = ({**ASKED, "contents": TEXTS, "labels": {"team": "a"}}, detecting, naming)
        return [client.translate_text(request=request) for request in requests]

    plain, detected, named = await asyncio.to_thread(ask)

    expected = await best(server, *TEXTS)
    assert [one.translated_text for one in plain.translations] == expected
    assert {one.model for one in plain.translations} == {f"{PARENT}/models/tiny/1"}
    assert [one.detected_language_code for one in detected.translations] == ["en", "en"]
    assert [one.translated_text for one in named.translations] == expected
    assert "Velo" in named.glossary_translations[0].translated_text
    assert named.glossary_translations[0].glossary_config.glossary == glossary["glossary"]


async def test_v3_client_detects_and_lists(server: RunningServer) -> None:
    def ask() -> dict[str, Any]:
        client = v3_client(server)
        return {
            "detected": client.detect_language(parent=PARENT, content=TEXTS[0]).languages[0].language_code,
            "languages": [
                (one.language_code, one.support_source, one.support_target)
                for one in client.get_supported_languages(parent=PARENT, model=f"{PARENT}/models/tiny").languages
            ],
            "of a project": len(client.get_supported_languages(parent="projects/shop").languages),
            "glossaries": [one.name for one in client.list_glossaries(request={"parent": PARENT, "page_size": 1})],
            "glossary": client.get_glossary(name=f"{PARENT}/glossaries/it").entry_count,
        }

    assert await asyncio.to_thread(ask) == {
        "detected": "en",
        "languages": [("de", False, True), ("en", True, False)],
        "of a project": 2,
        "glossaries": [f"{PARENT}/glossaries/it"],
        "glossary": 1,
    }


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda c: c.translate_text(request={**ASKED, "contents": ["A."] * 129}), exceptions.BadRequest, "contents: "),
        (lambda c: c.translate_text(request={**ASKED, "contents": []}), exceptions.BadRequest, "contents: "),
        (
            lambda c: c.translate_text(request={**ASKED, "contents": ["A."], "model": f"{PARENT}/models/none"}),
            exceptions.NotFound,
            "model: none",
        ),
        (lambda c: c.get_glossary(name=f"{PARENT}/glossaries/none"), exceptions.NotFound, "name: 'none'"),
        (
            lambda c: list(c.list_glossaries(request={"parent": PARENT, "filter": "x"})),
            exceptions.ServerError,
            "filter",
        ),
        (lambda c: c.romanize_text(parent=PARENT, contents=["A."]), exceptions.MethodNotImplemented, "romanizeText"),
        (lambda c: c.delete_glossary(name=f"{PARENT}/glossaries/it"), exceptions.MethodNotImplemented, "DELETE"),
    ],
)
async def test_v3_client_gets_its_own_errors(
    server: RunningServer, ask: Callable[[google.TranslationServiceClient], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await asyncio.to_thread(lambda: ask(v3_client(server)))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"contents": "A."}, "contents"),
        ({"contents": ["A.", 7]}, "contents[1]"),
        ({"contents": ["\ud800"]}, "contents[0]"),
        ({"contents": ["A."], "sourceLanguageCode": 7}, "source_language_code"),
        ({"contents": ["A."], "labels": {"a": 7}}, "labels"),
        ({"contents": ["A."], "glossaryConfig": {"glossary": ["x"]}}, "glossary_config.glossary"),
        ({"contents": ["A."], "other": 1}, "other"),
        ({"contents": ["A."], "parent": "projects/another"}, "parent"),
        ([], "request"),
        ("{", "request"),
    ],
)
async def test_v3_body_of_another_form_is_refused_by_field(server: RunningServer, body: object, field: str) -> None:
    whole = {"targetLanguageCode": "de", **body} if isinstance(body, dict) else body

    status, answered = await sent(server, "POST", f"/v3/{PARENT}:translateText", whole)

    error = answered["error"]
    assert (status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    violations = [one for detail in error["details"] for one in detail.get("fieldViolations", ())]
    assert [one["field"] for one in violations] == [field]
    assert error["message"].startswith(f"{field}: ")


async def test_v3_query_takes_the_parameters_of_all_methods_and_no_others(server: RunningServer) -> None:
    body = {"contents": TEXTS, "targetLanguageCode": "de", "sourceLanguageCode": "en", "mimeType": "text/plain"}
    path = f"/v3/{PARENT}:translateText?%24alt=json%3Benum-encoding%3Dint&prettyPrint=false"

    status, answered = await sent(server, "POST", path, body)
    refused, error = await sent(server, "POST", f"{path}&fields=translations", body)

    assert status == 200
    assert [one["translatedText"] for one in answered["translations"]] == await best(server, *TEXTS)
    assert (refused, error["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/glossaries?pageSize=1", 200),
        ("/glossaries?pageSize=x", 400),
        ("/supportedLanguages?displayLanguageCode=en", 200),
        ("/supportedLanguages?nothing=1", 400),
        ("/operations/7", 501),
    ],
)
async def test_v3_resources_are_read_by_plain_requests(server: RunningServer, path: str, expected: int) -> None:
    assert (await sent(server, "GET", f"/v3/{PARENT}{path}", headers={}))[0] == expected


async def test_v2_client_translates_detects_and_lists(server: RunningServer) -> None:
    def ask() -> dict[str, Any]:
        client = v2_client(server)
        return {
            "one": client.translate(TEXTS[0], target_language="de", source_language="en", format_="text"),
            "list": client.translate(TEXTS, target_language="de", format_="text", model="nmt"),
            "detected": client.detect_language([TEXTS[0], "7"]),
            "languages": [one["language"] for one in client.get_languages()],
        }

    answers = await asyncio.to_thread(ask)

    expected = await best(server, *TEXTS)
    assert answers["one"] == {"translatedText": expected[0], "input": TEXTS[0]}
    assert [one["translatedText"] for one in answers["list"]] == expected
    assert {(one["detectedSourceLanguage"], one["model"]) for one in answers["list"]} == {("en", "tiny/1")}
    assert [one["language"] for one in answers["detected"]] == ["en", "und"]
    assert answers["languages"] == ["de", "en"]


@pytest.mark.parametrize("way", ["query", "form", "json", "post query", "override", "mixed"])
async def test_v2_takes_parameters_in_each_way(server: RunningServer, way: str) -> None:
    fields = [("q", TEXTS[0]), ("q", TEXTS[1]), ("target", "de"), ("source", "en"), ("format", "text")]
    as_json = {"q": TEXTS, "target": "de", "source": "en", "format": "text"}
    form = urlencode(fields)
    requests: dict[str, tuple[Any, ...]] = {
        "query": ("GET", f"{V2}?{form}", None, {}),
        "form": ("POST", V2, form, FORM),
        "json": ("POST", V2, as_json),
        "post query": ("POST", f"{V2}?{form}", None, {}),
        "override": ("POST", V2, form, {**FORM, "x-http-method-override": "GET"}),
        "mixed": ("POST", f"{V2}?{urlencode(fields[1:])}", urlencode(fields[:1]), FORM),
    }

    status, answered = await sent(server, *requests[way])

    texts = TEXTS[::-1] if way == "mixed" else TEXTS
    assert status == 200
    assert [one["translatedText"] for one in answered["data"]["translations"]] == await best(server, *texts)


async def test_v2_takes_128_texts_in_the_query(server: RunningServer) -> None:
    query = urlencode([("q", "A.")] * 128 + [("target", "de"), ("source", "en"), ("key", "x")])

    status, answered = await sent(server, "GET", f"{V2}?{query}", headers={})

    assert (status, len(answered["data"]["translations"])) == (200, 128)


async def test_v2_keeps_empty_texts_in_their_place(server: RunningServer) -> None:
    query = urlencode([("q", ""), ("q", TEXTS[0]), ("q", ""), ("target", "de"), ("source", "en")])

    _, answered = await sent(server, "GET", f"{V2}?{query}", headers={})

    translated = [one["translatedText"] for one in answered["data"]["translations"]]
    assert (translated[0], bool(translated[1]), translated[2]) == ("", True, "")


async def test_v2_texts_are_html_unless_the_request_says_otherwise(server: RunningServer) -> None:
    text = "<p>A &amp; b</p>"
    status, answered = await sent(server, "POST", V2, {"q": text, "target": "de", "source": "en"})

    (expected,) = (await server.translate(text, options={"format": "TEXT_FORMAT_HTML"})).translations
    assert status == 200
    assert answered["data"]["translations"] == [{"translatedText": expected.hypotheses[0].text}]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"q": ["A."] * 129}, "q"),
        ({"q": []}, "q"),
        ({"q": ["A.", 7]}, "q[1]"),
        ({"q": "\ud800"}, "q"),
        ({"q": "A.", "target": None}, "target"),
        ({"q": "A.", "target": "\ud800"}, "target"),
        ({"q": "A.", "source": 7}, "source"),
        ({"q": "A.", "format": "rtf"}, "format"),
        ({"q": "A.", "model": 7}, "model"),
        ({"q": "A.", "cid": ["x"]}, "cid"),
        ({"q": "A.", "other": "x"}, "other"),
    ],
)
async def test_v2_names_the_field_that_is_wrong(server: RunningServer, fields: dict[str, Any], field: str) -> None:
    status, answered = await sent(server, "POST", V2, {"target": "de", "source": "en", **fields})

    error = answered["error"]
    assert (status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert error["errors"] == [{"message": error["message"], "domain": "global", "reason": "invalid"}]
    assert error["message"].startswith(f"{field}: ")
    violations = [one for detail in error["details"] for one in detail.get("fieldViolations", ())]
    assert [one["field"] for one in violations] == [field]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("POST", V2, {"q": "A.", "target": "ja", "source": "en"}, None, (404, "NOT_FOUND")),
        ("POST", V2, {"q": "A.", "target": "de", "source": "en", "model": "none"}, None, (404, "NOT_FOUND")),
        ("POST", V2, "q=A.", {"content-type": "text/plain"}, (415, "INVALID_ARGUMENT")),
        ("POST", f"{V2}?target=de", {"q": "A.", "target": "en"}, None, (400, "INVALID_ARGUMENT")),
        ("GET", f"{V2}?{'x=1&' * 300}", None, {}, (400, "INVALID_ARGUMENT")),
        ("GET", f"{V2}?q=%ff", None, {}, (400, "INVALID_ARGUMENT")),
        ("GET", f"{V2}/other", None, {}, (404, "NOT_FOUND")),
    ],
)
async def test_v2_refuses_in_the_form_of_google(
    server: RunningServer, method: str, path: str, body: object, headers: Any, expected: tuple[int, str]
) -> None:
    status, answered = await sent(server, method, path, body, headers)

    assert (status, answered["error"]["status"]) == expected
    assert answered["error"]["code"] == status


async def test_a_model_of_this_server_can_be_named_in_v2(server: RunningServer) -> None:
    for model in ("tiny/1", f"{PARENT}/models/tiny", "base"):
        fields = {"q": TEXTS, "target": "de", "source": "en", "format": "text", "model": model}
        status, answered = await sent(server, "POST", V2, fields)
        assert (status, answered["data"]["translations"][0]["model"]) == (200, "tiny/1")


async def test_keys_are_taken_from_header_and_query(guarded: RunningServer) -> None:
    fields = {"q": "A.", "target": "de", "source": "en"}
    bearer = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}

    def ask() -> list[int]:
        v3, v2 = v3_client(guarded, KEY), v2_client(guarded, KEY)
        return [
            len(v3.translate_text(request={**ASKED, "contents": TEXTS}).translations),
            len(v3.get_supported_languages(parent=PARENT).languages),
            len(v2.translate(TEXTS, target_language="de", source_language="en")),
        ]

    assert await asyncio.to_thread(ask) == [2, 2, 2]
    assert (await sent(guarded, "POST", f"{V2}?key={KEY}", fields))[0] == 200
    assert (await sent(guarded, "GET", f"{V2}?{urlencode({**fields, 'key': KEY})}", headers={}))[0] == 200
    assert (await sent(guarded, "GET", f"/v3/{PARENT}/supportedLanguages?key={KEY}", headers={}))[0] == 200
    assert (await sent(guarded, "POST", V2, fields, bearer))[0] == 200


async def test_wrong_key_is_refused_before_the_body_is_read(guarded: RunningServer) -> None:
    with pytest.raises(exceptions.Unauthorized):
        await asyncio.to_thread(lambda: v3_client(guarded, new_key()).detect_language(parent=PARENT, content="A."))
    for path in (f"{V2}?key={new_key()}", V2, f"{V2}/detect", f"/v3/{PARENT}:translateText?key=x"):
        # The body never comes: only an answer that does not wait for it ends the request.
        headers = {"content-type": "application/json", "content-length": "100"}
        status, answered = await sent(guarded, "POST", path, None, headers)
        assert (status, answered["error"]["status"]) == (401, "UNAUTHENTICATED")
        assert answered["error"]["errors"][0]["reason"] == "required"
        assert "metadata" not in answered["error"]["message"]


async def test_v2_and_v3_are_off_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        for path in (V2, f"/v3/{PARENT}:translateText"):
            assert (await sent(server, "POST", path, {}))[0] == 404
