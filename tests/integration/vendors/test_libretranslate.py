"""LibreTranslate API: its client, all encodings of parameters, and keys in the body."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import RunningServer, running_server
from tests.integration.vendors.vendor_clients import TEXTS, http_address, http_client, translated, write_callers

FIELDS = {"q": TEXTS[0], "source": "en", "target": "de"}
KEY = new_key()
ENCODINGS = ["json", "data", "multipart", "params"]


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server) as client:
        yield client


def encoded(encoding: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of httpx that send fields in an encoding."""
    if encoding == "multipart":
        parts = [
            (name, value)
            for name, values in fields.items()
            for value in (values if isinstance(values, list) else [values])
        ]
        return {"files": [(name, (None, str(value))) for name, value in parts]}
    return {encoding: fields}


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_parameters_are_accepted_in_each_encoding(
    server: RunningServer, http: httpx.AsyncClient, encoding: str
) -> None:
    one = await http.post("/translate", **encoded(encoding, {**FIELDS, "format": "text", "api_key": ""}))
    several = await http.post("/translate", **encoded(encoding, {**FIELDS, "q": list(TEXTS), "alternatives": 2}))

    options = pb.DecodingOptions(num_hypotheses=3)
    response = await server.translate(*TEXTS, options=options)
    expected = [[hypothesis.text for hypothesis in each.hypotheses] for each in response.translations]
    assert (one.status_code, one.json()) == (200, {"translatedText": (await translated(server, TEXTS[0]))[0]})
    assert several.json() == {
        "translatedText": [texts[0] for texts in expected],
        "alternatives": [texts[1:] for texts in expected],
    }


async def test_query_and_body_are_merged(http: httpx.AsyncClient) -> None:
    query = {"source": "en", "target": "de"}
    responses = [
        await http.post("/translate", params=query, json={"q": "A man."}),
        await http.post("/translate", params=FIELDS, data=FIELDS),
        await http.post("/translate", params=query, json={**FIELDS, "source": "de"}),
        await http.post("/translate?q=%ff&source=en&target=de"),
        await http.post("/translate", params=query, files={"q": ("a.txt", b"A man.")}),
    ]

    assert [response.status_code for response in responses] == [200, 200, 400, 400, 400]
    assert responses[2].json()["error"].startswith("source: ")


@pytest.mark.parametrize("content", [b"", b"q=%ff&source=en", b"q=a&source=en&source=en", b"q=a&" * 1000, b"\xff"])
async def test_invalid_form_is_rejected(http: httpx.AsyncClient, content: bytes) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await http.post("/translate", content=content, headers=headers)

    assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_client_translates_detects_and_lists(server: RunningServer) -> None:
    def call() -> None:
        client = LibreTranslateAPI(f"{http_address(server)}/", None)
        assert [client.translate(text, "en", "de") for text in TEXTS] == expected
        assert client.translate(TEXTS[0], "auto", "de") == expected[0]
        assert client.detect(TEXTS[0])[0]["language"] == "en"
        assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]

    expected = await translated(server, *TEXTS)
    await asyncio.to_thread(call)


async def test_detected_language_has_a_confidence_in_percent(http: httpx.AsyncClient) -> None:
    (detected, *_) = (await http.post("/detect", data={"q": TEXTS[0]})).json()
    translation = (await http.post("/translate", json={**FIELDS, "source": "auto"})).json()

    assert detected["language"] == translation["detectedLanguage"]["language"] == "en"
    assert 50 <= detected["confidence"] < 100
    assert (await http.post("/detect", json={"q": 7})).status_code == 400
    assert (await http.post("/detect", json={"q": ["A man."]})).status_code == 400


async def test_html_keeps_its_tags(http: httpx.AsyncClient) -> None:
    response = await http.post("/translate", json={**FIELDS, "q": "<p>A man.</p>", "format": "html"})

    assert response.json()["translatedText"].startswith("<p>")


async def test_web_page_gets_its_settings(http: httpx.AsyncClient) -> None:
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
async def test_other_methods_and_paths_are_rejected_in_the_form_of_libretranslate(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await http.request(method, path, params=FIELDS)

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert ("allow" in response.headers) == (status == 405)


async def test_key_may_be_in_the_body(tiny_model: Path, tmp_path: Path) -> None:
    callers = write_callers(tmp_path, {"shop": KEY})
    async with running_server(tiny_model, access__callers_file=callers) as server, http_client(server) as http:
        answered = [
            (await http.post("/translate", **encoded(encoding, {**FIELDS, "api_key": KEY}))).status_code
            for encoding in ENCODINGS
        ]
        rejected = [await http.post("/translate", json={**FIELDS, "api_key": key}) for key in ("", "x", new_key(), 7)]

    assert answered == [200] * len(ENCODINGS)
    assert [response.status_code for response in rejected] == [403, 403, 403, 400]
    assert all(list(response.json()) == ["error"] for response in rejected)


async def test_rate_limit_is_reported_with_a_delay(tiny_model: Path, tmp_path: Path) -> None:
    callers = write_callers(tmp_path, {"shop": KEY}, "requests_per_s = 1")
    async with running_server(tiny_model, access__callers_file=callers) as server, http_client(server) as http:
        responses = [await http.post("/translate", data={**FIELDS, "api_key": KEY}) for _ in range(2)]

    assert [response.status_code for response in responses] == [200, 429]
    assert responses[1].headers["retry-after"] == "1"
