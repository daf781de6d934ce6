"""Headers and parameters for the API key of each vendor API, and the limits of requests before authentication."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from dragoman_service.calls.flow_control import MAX_ANONYMOUS_BODY_BYTES
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, bearer, http_client
from tests.integration.vendors.vendor_clients import PARENT, PATHS, TEXTS, google_rest_client, google_v2_client

FIELDS = {"q": "A man.", "source": "en", "target": "de"}
DEEPL, AZURE, LIBRETRANSLATE, V2, V3 = (
    PATHS[vendor] for vendor in ("deepl", "azure 3.0", "libretranslate", "google v2", "google v3")
)
WRONG = f"dgm_{'0' * 12}_{'A' * 43}"  # well-formed, and the same in each process of the test run


@pytest.fixture(scope="module")
async def http(guarded: RunningServer) -> Any:
    async with http_client(guarded) as client:
        yield client


async def rejection_of_head(server: RunningServer, path: str, *headers: str, num_bytes: int) -> tuple[int, Any]:
    """Return status and body of the response that the server sends before it receives the body."""
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {num_bytes}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http_port)
    try:
        writer.write("\r\n".join([*head, "Content-Type: application/json", *headers, "", ""]).encode())
        async with asyncio.timeout(TEST_TIMEOUT_S):
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            return int(answer.split()[1]), json.loads(await reader.readexactly(int(length.split()[1])))
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("path", "header", "num_bytes", "status"),
    [
        (DEEPL, "", 4_000_000, 403),
        (DEEPL, f"Authorization: DeepL-Auth-Key {WRONG}", 4_000_000, 403),
        (AZURE, "", 4_000_000, 401),
        (AZURE, f"Ocp-Apim-Subscription-Key: {WRONG}", 4_000_000, 401),
        (f"{LIBRETRANSLATE}?api_key={WRONG}", "", 4_000_000, 403),
        ("/detect", f"Authorization: Bearer {WRONG}", 10, 403),
        (LIBRETRANSLATE, "", MAX_ANONYMOUS_BODY_BYTES + 1, 400),
    ],
)
async def test_key_is_checked_before_the_body(
    guarded: RunningServer, path: str, header: str, num_bytes: int, status: int
) -> None:
    answered, _ = await rejection_of_head(guarded, path, *filter(None, [header]), num_bytes=num_bytes)

    assert answered == status


@pytest.mark.parametrize(
    ("path", "status", "code", "reason", "info"),
    [
        (f"{V2}?key={WRONG}", 400, "INVALID_ARGUMENT", "keyInvalid", "API_KEY_INVALID"),
        (V2, 401, "UNAUTHENTICATED", "required", "UNAUTHENTICATED"),
        (f"{V2}/detect?key=x", 400, "INVALID_ARGUMENT", "keyInvalid", "API_KEY_INVALID"),
        (f"{V3}?key=x", 401, "UNAUTHENTICATED", "required", "UNAUTHENTICATED"),
    ],
)
async def test_invalid_key_of_google_is_rejected_before_the_body_is_read(
    guarded: RunningServer, path: str, status: int, code: str, reason: str, info: str
) -> None:
    answered, body = await rejection_of_head(guarded, path, num_bytes=100)

    error = body["error"]
    assert (answered, error["status"]) == (status, code)
    assert (error["errors"][0]["reason"], error["details"][0]["reason"]) == (reason, info)
    assert "metadata" not in error["message"]


async def test_key_of_google_is_accepted_in_header_and_query(
    guarded: RunningServer, http: httpx.AsyncClient, key: str
) -> None:
    def call() -> list[int]:
        return [
            len(google_rest_client(guarded, key).get_supported_languages(parent=PARENT).languages),
            len(google_v2_client(guarded, key).translate(list(TEXTS), target_language="de", source_language="en")),
        ]

    assert await asyncio.to_thread(call) == [2, 2]
    responses = [
        await http.post(V2, params={"key": key}, json=FIELDS),
        await http.get(V2, params={**FIELDS, "key": key}),
        await http.get(f"/v3/{PARENT}/supportedLanguages", params={"key": key}),
        await http.post(V2, json=FIELDS, headers=dict(bearer(key))),
    ]
    assert [response.status_code for response in responses] == [200] * 4


async def test_key_of_libretranslate_may_be_in_the_body(http: httpx.AsyncClient, key: str) -> None:
    with_key = {**FIELDS, "api_key": key}
    multipart = [(name, (None, value)) for name, value in with_key.items()]

    responses = [
        await http.post(LIBRETRANSLATE, json=with_key),
        await http.post(LIBRETRANSLATE, data=with_key),
        await http.post(LIBRETRANSLATE, files=multipart),
        await http.post(LIBRETRANSLATE, params=with_key),
    ]

    assert [response.status_code for response in responses] == [200] * 4


@pytest.mark.parametrize("wrong", ["", WRONG, "x" * 20_000, "a.b.c", "a b", "\n", "\ud800", 7, ["a"], {"a": 1}, True])
async def test_malformed_key_in_a_body_is_rejected(http: httpx.AsyncClient, wrong: object) -> None:
    content = json.dumps({**FIELDS, "api_key": wrong})
    response = await http.post(LIBRETRANSLATE, content=content, headers={"content-type": "application/json"})

    assert response.status_code == (403 if isinstance(wrong, str) and wrong.isascii() else 400)
    assert list(response.json()) == ["error"]


async def test_longer_body_is_read_after_authentication(http: httpx.AsyncClient, key: str) -> None:
    body = {**FIELDS, "q": "ä" * 600_000}
    unknown = await http.post(LIBRETRANSLATE, json={**body, "api_key": key})
    known = [
        await http.post(f"{LIBRETRANSLATE}?api_key={key}", json=body),
        await http.post(LIBRETRANSLATE, json=body, headers=dict(bearer(key))),
    ]

    assert f"at most {MAX_ANONYMOUS_BODY_BYTES} bytes" in unknown.json()["error"]
    errors = [response.json()["error"] for response in known]
    assert errors == ["q: is 600000 characters, must be at most 10000"] * 2


async def test_bodies_without_a_key_share_a_budget(guarded: RunningServer, http: httpx.AsyncClient, key: str) -> None:
    body = {**FIELDS, "api_key": key}
    bounds = guarded.app._grpc.pipeline.bounds
    with bounds.anonymous_bytes.held("ipv4:127.0.0.1", 4 * 1024 * 1024):
        over = await http.post(LIBRETRANSLATE, json=body)
        with_header = await http.post(LIBRETRANSLATE, json=body, headers=dict(bearer(key)))
    after = await http.post(LIBRETRANSLATE, json=body)

    assert (over.status_code, "bytes without an API key" in over.json()["error"]) == (429, True)
    assert [with_header.status_code, after.status_code] == [200, 200]
    assert bounds.anonymous_bytes.num_held == 0


async def test_only_lists_of_libretranslate_and_azure_need_no_key(http: httpx.AsyncClient) -> None:
    answered = [
        await http.get("/languages"),
        await http.request("GET", "/languages", data={"api_key": "wrong"}),
        await http.get("/languages", params={"api-version": "3.0"}),
        await http.get("/frontend/settings"),
        await http.get("/health"),
    ]
    rejected = [await http.get(path) for path in ("/v1/languages", "/v2/languages", "/v2/usage")]

    assert [response.status_code for response in answered] == [200] * 5
    assert [response.status_code for response in rejected] == [401, 403, 403]


async def test_errors_name_the_place_of_the_key_in_each_api(http: httpx.AsyncClient) -> None:
    messages = [
        (await http.post("/v1/translate", json={})).json()["detail"],
        (await http.post(DEEPL, json={})).json()["message"],
        (await http.post(AZURE, json=[])).json()["error"]["message"],
        (await http.post(LIBRETRANSLATE, json={})).json()["error"],
    ]

    assert messages == [
        "authentication failed: no API key in the header `Authorization: Bearer KEY`",
        "authentication failed: no API key in the header `Authorization: DeepL-Auth-Key KEY`",
        "authentication failed: no API key in the header `Ocp-Apim-Subscription-Key: KEY`",
        "authentication failed: no API key in the parameter `api_key`",
    ]
