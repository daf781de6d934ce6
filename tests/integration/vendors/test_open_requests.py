"""Limits on requests to the vendor APIs before authentication."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from dragoman_service.middleware.flow_control import MAX_OPEN_BODY_BYTES
from dragoman_service.security.api_keys import new_key, store
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server

KEY = new_key()
AZURE = "/translate?api-version=3.0&from=en&to=de"
JSON_HEADERS = {"content-type": "application/json"}


@pytest.fixture
async def guarded(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    callers = tmp_path / "callers.toml"
    callers.write_text(f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\n')
    async with running_server(tiny_model, access__callers_file=callers) as server:
        yield server


@contextlib.asynccontextmanager
async def client_of(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    address = f"http://127.0.0.1:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


async def answered_to_head(server: RunningServer, path: str, *headers: str, num_bytes: int) -> int:
    """Return the status that the server sends before it receives the body."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {num_bytes}", *headers, "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http_port)
    try:
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(PATIENCE_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def test_key_in_a_header_or_in_the_query_is_checked_before_the_body(guarded: RunningServer) -> None:
    async def status(path: str, *headers: str, num_bytes: int = 4_000_000) -> int:
        return await answered_to_head(guarded, path, "Content-Type: application/json", *headers, num_bytes=num_bytes)

    wrong = new_key()
    assert await status("/v2/translate") == 403
    assert await status("/v2/translate", f"Authorization: DeepL-Auth-Key {wrong}") == 403
    assert await status(AZURE) == 401
    assert await status(AZURE, f"Ocp-Apim-Subscription-Key: {wrong}") == 401
    assert await status(f"/translate?api_key={wrong}") == 403
    assert await status("/detect", f"Authorization: Bearer {wrong}", num_bytes=10) == 403
    assert await status("/translate", num_bytes=MAX_OPEN_BODY_BYTES + 1) == 400


async def test_longer_body_is_read_after_authentication(guarded: RunningServer) -> None:
    text = "ä" * 600_000
    async with client_of(guarded) as http:
        asked = {"q": text, "source": "en", "target": "de"}
        unknown = await http.post("/translate", json={**asked, "api_key": KEY})
        known = [
            await http.post(f"/translate?api_key={KEY}", json=asked),
            await http.post("/translate", json=asked, headers={"authorization": f"Bearer {KEY}"}),
        ]

    assert f"at most {MAX_OPEN_BODY_BYTES} bytes" in unknown.json()["error"]
    assert [one.json()["error"] for one in known] == ["q: is 600000 characters, must be at most 10000"] * 2


async def test_bodies_without_a_key_share_a_budget(guarded: RunningServer) -> None:
    asked = {"q": "A man.", "source": "en", "target": "de", "api_key": KEY}
    bounds = guarded.app._grpc.pipeline.bounds
    async with client_of(guarded) as http:
        with bounds.open_bytes.held("ipv4:127.0.0.1", 4 * 1024 * 1024):
            over = await http.post("/translate", json=asked)
            with_header = await http.post("/translate", json=asked, headers={"authorization": f"Bearer {KEY}"})
        after = await http.post("/translate", json=asked)

    assert (over.status_code, "bytes without an API key" in over.json()["error"]) == (429, True)
    assert [with_header.status_code, after.status_code] == [200, 200]
    assert bounds.open_bytes.num_held == 0


@pytest.mark.parametrize("key", [7, ["a"], {"a": 1}, True, "x" * 20_000, "a.b.c", "\ud800", "a b", "\n"])
async def test_malformed_key_is_rejected(guarded: RunningServer, key: object) -> None:
    asked = {"q": "A man.", "source": "en", "target": "de", "api_key": key}
    async with client_of(guarded) as http:
        response = await http.post("/translate", content=json.dumps(asked), headers=JSON_HEADERS)

    assert response.status_code == (403 if isinstance(key, str) and key.isascii() else 400)
    assert list(response.json()) == ["error"]


async def test_lists_of_languages_need_no_key(guarded: RunningServer) -> None:
    async with client_of(guarded) as http:
        responses = [
            await http.get("/languages"),
            await http.request("GET", "/languages", data={"api_key": "wrong"}),
            await http.get("/languages", params={"api-version": "3.0"}),
            await http.get("/frontend/settings"),
            await http.get("/health"),
        ]
        closed = [await http.get("/v1/languages"), await http.get("/v2/languages"), await http.get("/v2/usage")]

    assert [one.status_code for one in responses] == [200] * 5
    assert [one.status_code for one in closed] == [401, 403, 403]


async def test_errors_name_the_place_of_the_key_in_each_api(guarded: RunningServer) -> None:
    async with client_of(guarded) as http:
        said = [
            (await http.post("/v1/translate", json={})).json()["detail"],
            (await http.post("/v2/translate", json={})).json()["message"],
            (await http.post(AZURE, json=[])).json()["error"]["message"],
            (await http.post("/translate", json={})).json()["error"],
        ]

    assert said == [
        "authentication failed: no API key in the header `Authorization: Bearer KEY`",
        "authentication failed: no API key in the header `Authorization: DeepL-Auth-Key KEY`",
        "authentication failed: no API key in the header `Ocp-Apim-Subscription-Key: KEY`",
        "authentication failed: no API key in the parameter `api_key`",
    ]
