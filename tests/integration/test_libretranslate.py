"""LibreTranslate's API: its clients, and requests in each form that LibreTranslate takes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deep_translator import LibreTranslator  # type: ignore[import-untyped]
from deep_translator.exceptions import AuthorizationException  # type: ignore[import-untyped]
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key, store
from tests.integration.running_server import PATIENCE_S, RunningServer, request, running_server

ASKED = {"q": "A man rides a bicycle.", "source": "en", "target": "de"}
KEY = new_key()


@contextlib.asynccontextmanager
async def client_of(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    address = f"http://127.0.0.1:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


async def translated(server: RunningServer, *texts: str, metadata: Any = (), **options: Any) -> list[list[str]]:
    asked = request(*texts, options=pb.DecodingOptions(**options))
    response = await server.translation.Translate(asked, metadata=metadata)
    return [[hypothesis.text for hypothesis in one.hypotheses] for one in response.translations]


def sent_as(way: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which httpx sends fields in one of the forms."""
    if way == "multipart":
        parts = [
            (name, value)
            for name, values in fields.items()
            for value in (values if isinstance(values, list) else [values])
        ]
        return {"files": [(name, (None, str(value))) for name, value in parts]}
    return {way: fields}


WAYS = ["json", "data", "multipart", "params"]


@pytest.mark.parametrize("way", WAYS)
async def test_text_is_translated_in_each_form(server: RunningServer, http: httpx.AsyncClient, way: str) -> None:
    response = await http.post("/translate", **sent_as(way, {**ASKED, "format": "text", "api_key": ""}))

    assert (response.status_code, response.json()) == (
        200,
        {"translatedText": (await translated(server, ASKED["q"]))[0][0]},
    )


async def test_fields_of_query_and_body_are_taken_together(server: RunningServer, http: httpx.AsyncClient) -> None:
    query = {"source": "en", "target": "de"}
    responses = [
        await http.post("/translate", params=query, json={"q": "A man."}),
        await http.post("/translate", params=ASKED, data=ASKED),
        await http.post("/translate", params=query, json={**ASKED, "source": "de"}),
        await http.post("/translate?q=%ff&source=en&target=de"),
        await http.post("/translate", params=query, files={"q": ("a.txt", b"A man.")}),
    ]

    assert [one.status_code for one in responses] == [200, 200, 400, 400, 400]
    assert "source: is of two values" in responses[2].json()["error"]


async def test_clients_work_without_and_with_keys(tiny_model: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\n')
    texts = ["A man rides a bicycle.", "Two children play."]

    async def check(server: RunningServer, key: str | None) -> None:
        address = f"http://127.0.0.1:{server.ports.http_port}/"
        expected = [one[0] for one in await translated(server, *texts, metadata=[("authorization", f"Bearer {KEY}")])]

        def ask() -> None:
            client = LibreTranslateAPI(address, key)
            assert [client.translate(text, "en", "de") for text in texts] == expected
            assert client.translate(texts[0], "auto", "de") == expected[0]
            assert client.detect(texts[0])[0]["language"] == "en"
            assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
            other = LibreTranslator(source="en", target="de", api_key=key or "any", custom_url=address)
            assert other.translate_batch(texts) == expected

        await asyncio.to_thread(ask)

    async with running_server(tiny_model) as server:
        await check(server, None)
    async with running_server(tiny_model, access__callers_file=callers) as server:
        await check(server, KEY)
        wrong = LibreTranslator(
            source="en", target="de", api_key=new_key(), custom_url=f"http://127.0.0.1:{server.ports.http_port}/"
        )
        with pytest.raises(AuthorizationException):
            await asyncio.to_thread(wrong.translate, "A man.")
        async with client_of(server) as http:
            fields = {**ASKED, "api_key": KEY}
            statuses = [(await http.post("/translate", **sent_as(way, fields))).status_code for way in WAYS]
    assert statuses == [200] * len(WAYS)


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_is_answered_with_lists(server: RunningServer, http: httpx.AsyncClient, way: str) -> None:
    texts = ["A man.", "Two children play."]
    response = await http.post("/translate", **sent_as(way, {**ASKED, "q": texts, "alternatives": 2}))

    expected = await translated(server, *texts, num_hypotheses=3)
    assert response.json() == {
        "translatedText": [one[0] for one in expected],
        "alternatives": [one[1:] for one in expected],
    }


async def test_settings_of_the_web_page_are_described(http: httpx.AsyncClient) -> None:
    settings = (await http.get("/frontend/settings")).json()

    assert (settings["charLimit"], settings["apiKeys"], settings["keyRequired"]) == (10_000, False, False)
    assert settings["language"] == {
        "source": {"code": "auto", "name": "Auto Detect"},
        "target": {"code": "de", "name": "German"},
    }
    assert (await http.get("/health")).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/translate", 405),
        ("PUT", "/detect", 405),
        ("POST", "/languages", 405),
        ("POST", "/health", 405),
        ("POST", "/suggest", 403),
        ("GET", "/spec", 404),
        ("POST", "/translate/more", 404),
        ("GET", "/frontend/settings/more", 404),
    ],
)
async def test_other_methods_and_paths_have_errors_of_the_same_form(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await http.request(method, path, params=ASKED)

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert ("allow" in response.headers) == (status == 405)


async def test_html_keeps_its_tags(http: httpx.AsyncClient) -> None:
    response = await http.post("/translate", json={**ASKED, "q": "<p>A man.</p>", "format": "html"})

    assert response.status_code == 200
    assert response.json()["translatedText"].startswith("<p>")


async def test_languages_are_listed_with_their_targets(http: httpx.AsyncClient) -> None:
    assert (await http.get("/languages")).json() == [{"code": "en", "name": "English", "targets": ["de"]}]


@pytest.mark.parametrize("way", ["json", "data"])
async def test_languages_are_detected(http: httpx.AsyncClient, way: str) -> None:
    found = (await http.post("/detect", **{way: {"q": "A man rides a bicycle."}})).json()  # type: ignore[arg-type]
    texts = ["A man rides a bicycle.", "Two children play in the garden.", "7", "Das ist ein schöner Tag."]
    one = (await http.post("/translate", json={**ASKED, "source": "auto"})).json()
    several = (await http.post("/translate", json={**ASKED, "q": texts, "source": "auto"})).json()
    blank = (await http.post("/translate", json={**ASKED, "q": [" ", "8"], "source": "auto"})).json()
    foreign = await http.post("/translate", json={**ASKED, "q": [texts[0], "Merci beaucoup"], "source": "auto"})

    assert found[0]["language"] == one["detectedLanguage"]["language"] == "en"
    assert 50 <= found[0]["confidence"] < 100
    assert [each["language"] for each in several["detectedLanguage"]] == ["en", "en", "en", "de"]
    assert several["translatedText"][2:] == texts[2:]
    assert blank["translatedText"] == [" ", "8"]
    assert (foreign.status_code, "text 1 seems to be fr" in foreign.json()["error"]) == (400, True)
    assert (await http.post("/detect", json={"q": 7})).status_code == 400


@pytest.mark.parametrize("change", [{"q": ["A man.", 7]}, {"q": "x" * 20_000}, {"source": "xx"}, {"target": "\ud800"}])
async def test_what_cannot_be_is_an_error_of_its_own_kind(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post("/translate", content=json.dumps({**ASKED, **change}), headers=headers)

    assert (response.status_code, list(response.json())) == (400, ["error"])


@pytest.mark.parametrize("content", [b"", b"q=%ff&source=en", b"q=a&source=en&source=en", b"q=a&" * 1000, b"\xff"])
async def test_a_form_that_is_none_is_refused(http: httpx.AsyncClient, content: bytes) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await http.post("/translate", content=content, headers=headers)

    assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_the_key_comes_in_the_body(tiny_model: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(
        f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\nrequests_per_s = 1\n'
    )
    async with running_server(tiny_model, access__callers_file=callers) as server, client_of(server) as http:
        refused = [await http.post("/translate", json={**ASKED, "api_key": key}) for key in ("", "x", new_key())]
        answered = await http.post("/translate", data={**ASKED, "api_key": KEY})
        limited = await http.post("/translate", data={**ASKED, "api_key": KEY})

    assert [(response.status_code, list(response.json())) for response in refused] == [(403, ["error"])] * 3
    assert answered.status_code == 200
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
