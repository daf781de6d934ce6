"""LibreTranslate's API: what its clients send, byte for byte as they send it, and what they read."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dragoman.v1 import translation_pb2 as pb

from service.api.callers import new_key, store
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server

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


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[list[str]]:
    response = await server.translate(*texts, options=pb.DecodingOptions(**options))
    return [[hypothesis.text for hypothesis in one.hypotheses] for one in response.translations]


@pytest.mark.parametrize("way", ["json", "data"])
async def test_a_text_is_translated_in_json_and_as_a_form(
    server: RunningServer, http: httpx.AsyncClient, way: str
) -> None:
    response = await http.post("/translate", **{way: {**ASKED, "format": "text", "api_key": ""}})  # type: ignore[arg-type]

    assert (response.status_code, response.json()) == (
        200,
        {"translatedText": (await translated(server, ASKED["q"]))[0][0]},
    )


@pytest.mark.parametrize("way", ["json", "data"])
async def test_a_list_is_answered_with_lists(server: RunningServer, http: httpx.AsyncClient, way: str) -> None:
    texts = ["A man.", "Two children play."]
    response = await http.post("/translate", **{way: {**ASKED, "q": texts, "alternatives": 2}})  # type: ignore[arg-type]

    expected = await translated(server, *texts, num_hypotheses=3, beam_size=4)
    assert response.json() == {
        "translatedText": [one[0] for one in expected],
        "alternatives": [one[1:] for one in expected],
    }


async def test_html_keeps_its_tags(http: httpx.AsyncClient) -> None:
    response = await http.post("/translate", json={**ASKED, "q": "<p>A man.</p>", "format": "html"})

    assert response.status_code == 200
    assert response.json()["translatedText"].startswith("<p>")


async def test_languages_are_listed_with_their_targets(http: httpx.AsyncClient) -> None:
    assert (await http.get("/languages")).json() == [{"code": "en", "name": "English", "targets": ["de"]}]


@pytest.mark.parametrize("way", ["json", "data"])
async def test_languages_are_detected(http: httpx.AsyncClient, way: str) -> None:
    found = (await http.post("/detect", **{way: {"q": "A man rides a bicycle."}})).json()  # type: ignore[arg-type]
    texts = ["A man rides a bicycle.", "Two children play in the garden.", "7"]
    one = (await http.post("/translate", json={**ASKED, "source": "auto"})).json()
    several = (await http.post("/translate", json={**ASKED, "q": texts, "source": "auto"})).json()
    unknown = await http.post("/translate", json={**ASKED, "q": ["7", "8"], "source": "auto"})

    assert found[0]["language"] == one["detectedLanguage"]["language"] == "en"
    assert 60 <= found[0]["confidence"] <= 100
    assert [each["language"] for each in several["detectedLanguage"]] == ["en", "en", "en"]
    assert len(several["translatedText"]) == 3
    assert (unknown.status_code, "no language" in unknown.json()["error"]) == (400, True)
    assert (await http.post("/detect", json={"q": 7})).status_code == 400


@pytest.mark.parametrize(
    "change",
    [
        {"q": None},
        {"q": 7},
        {"q": ["A man.", 7]},
        {"q": []},
        {"q": ["A man."] * 129},
        {"q": "\ud800"},
        {"q": "x" * 20_000},
        {"source": None},
        {"source": "xx"},
        {"target": ["de"]},
        {"format": "pdf"},
        {"format": {}},
        {"alternatives": 99},
        {"alternatives": -1},
        {"alternatives": "many"},
        {"alternatives": 1.5},
        {"colour": "red"},
    ],
)
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
