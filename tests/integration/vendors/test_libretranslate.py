"""LibreTranslate API: its client, all encodings of parameters, and keys in the body."""

import asyncio
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer
from tests.integration.vendors.vendor_clients import TEXTS, translated

FIELDS = {"q": TEXTS[0], "source": "en", "target": "de"}
ENCODINGS = ["json", "data", "multipart", "params"]


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


@pytest.mark.parametrize("path", ["/translate", "/detect"])
async def test_names_that_clients_send_are_ignored_and_logged_once(
    http: httpx.AsyncClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = FIELDS if path == "/translate" else {"q": TEXTS[0]}
    with caplog.at_level("INFO", logger="dragoman_service.vendor_apis.parameters"):
        answers = [await http.post(path, json={**fields, "secret": "s3"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len([record for record in caplog.records if record.message == "parameter ignored"]) <= 1
    assert "s3" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"q=%ff&source=en", b"q=a&source=en&source=en", b"q=a&" * 1000, b"\xff"])
async def test_invalid_form_is_rejected(http: httpx.AsyncClient, content: bytes) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await http.post("/translate", content=content, headers=headers)

    assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_client_translates_detects_and_lists(server: RunningServer) -> None:
    def call() -> None:
        client = LibreTranslateAPI(f"{server.url}/", None)
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
    assert 50 <= detected["confidence"] <= 100
    assert isinstance(detected["confidence"], int)
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
