"""The HTTP API of a real server with the tiny model; `test_transports` has the features it shares with gRPC."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import ParseDict

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles, chain_pem, key_pem
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    bearer,
    caller_entry,
    http_client,
    running_server,
)
from tests.integration.transports import events, problem

BODY = {"texts": ["A man rides a bicycle."], "sourceLanguage": "en", "targetLanguage": "de"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - reached on loopback here
JSON = {"content-type": "application/json"}
# a request without the rest of its body
HEAD = (
    b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
)


def https_client(
    server: RunningServer, context: ssl.SSLContext
) -> contextlib.AbstractAsyncContextManager[httpx.AsyncClient]:
    return http_client(server, base_url=f"https://{NAME}:{server.ports.http_port}", verify=context)


@pytest.fixture(scope="module")
async def http(shared_server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(shared_server) as client:
        yield client


@contextlib.asynccontextmanager
async def raw_connection(server: RunningServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http_port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def chunks(chunk: bytes, number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield chunk


async def test_response_has_fields_with_default_values(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/translate", json={**BODY, "texts": [""]})

    (translation,) = response.json()["translations"]
    assert translation == {
        "hypotheses": [{"text": "", "score": 0.0, "tokens": [], "tokenLogProbs": [], "alignment": [], "attention": []}],
        "sentences": [],
        "warnings": [],
        "isUnchanged": False,
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"options": {"beam": 1}}, "options.beam"),
        ({"options": {"sampling": {"seeds": 1}}}, "options.sampling.seeds"),
        ({"options": []}, "options"),
        ({"options": {"beamSize": 1.5}}, "options.beam_size"),
        ({"options": {"beamSize": 2**40}}, "options.beam_size"),
        ({"options": {"beamSize": 99}}, "options.beam_size"),
        ({"options": {"lengthPenalty": "NaN"}}, "options.length_penalty"),
        ({"options": {"returnScores": "yes"}}, "options.return_scores"),
        ({"options": {"longSentences": "SHRED"}}, "options.long_sentences"),
        ({"options": {"longSentences": 77}}, "options.long_sentences"),
        ({"texts": "A man."}, "texts"),
        ({"texts": ["A man.", 7]}, "texts[1]"),
        ({"texts": ["A man.", None]}, "texts[1]"),
        ({"texts": ["\ud800"]}, "texts[0]"),
        ({"texts": []}, "texts"),
        ({"options": {"protection": {"enabledKinds": ["CLOUD"]}}}, "options.protection.enabled_kinds[0]"),
        ({"sourceLanguage": 3}, "source_language"),
        ({"source_language": "en"}, "source_language"),
        ({"targetLanguage": None}, "target_language"),
        ({"requestId": "\n"}, "request_id"),
        ({"priority": "URGENT"}, "priority"),
    ],
)
async def test_invalid_field_is_named(http: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    members = problem(await http.post("/v1/translate", content=json.dumps({**BODY, **change}), headers=JSON))

    assert (members["status"], members["code"], members["reason"]) == (400, "INVALID_ARGUMENT", "INVALID_FIELD")
    assert [violation["field"] for violation in members["violations"]] == [field]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"texts": [NaN]}',
        b'{"texts": ["\xff"]}',
        b'{"texts": [], "texts": []}',
        b"[" * 100_000,
        b'{"texts": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        b'{"options": {"beamSize": ' + b"9" * 5_000 + b"}}",
        b'{"options": {"lengthPenalty": 1e999}}',
    ],
)
async def test_malformed_bodies_are_client_errors(http: httpx.AsyncClient, content: bytes) -> None:
    with capture_logs() as records:
        members = problem(await http.post("/v1/translate", content=content, headers=JSON))

    assert (members["status"], members["reason"]) == (400, "INVALID_FIELD")
    assert [record["event"] for record in records if record.get("log_level") in {"error", "critical"}] == []


async def test_large_body_is_rejected_before_it_is_read(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_message_bytes=2048) as server, http_client(server) as http:
        declared = await http.post("/v1/translate", json={**BODY, "texts": ["x" * 3000]})
        endless = await http.post("/v1/translate", content=chunks(b" " * 1024, 64), headers=JSON)
        assert (await http.post("/v1/translate", json=BODY)).status_code == 200

    assert [declared.status_code, endless.status_code] == [413, 413]
    assert problem(declared)["violations"][0]["field"] == problem(endless)["violations"][0]["field"] == "request"


async def test_missing_body_times_out(tiny_model: Path) -> None:
    settings = {"grpc__message_timeout_s": 0.1}
    async with running_server(tiny_model, **settings) as server, raw_connection(server) as (reader, writer):
        writer.write(HEAD)
        answer = await asyncio.wait_for(reader.readuntil(b"}"), TEST_TIMEOUT_S)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"reason":"DEADLINE_EXCEEDED"' in answer
    assert server.sample("dragoman_limit_rejections_total", limit="message_timeout_s") == 1


async def test_disconnect_during_the_body_releases_resources(server: RunningServer) -> None:
    with capture_logs() as records:
        async with raw_connection(server) as (_, writer):
            writer.write(HEAD)
            await writer.drain()
            await server.until_sample(1, "dragoman_unread_calls")
        await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")

    assert server.sample("dragoman_unread_calls") == server.sample("dragoman_received_bytes") == 0
    assert [record["event"] for record in records] == ["request"]


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("content-type", "text/plain", 415),
        ("content-type", "application/json; charset=utf-16", 415),
        ("content-encoding", "gzip", 415),
        *(("x-request-timeout", value, 400) for value in ("soon", "nan", "0", "-1")),
    ],
)
async def test_invalid_header_is_named(http: httpx.AsyncClient, name: str, value: str, status: int) -> None:
    members = problem(await http.post("/v1/translate", content=json.dumps(BODY), headers={**JSON, name: value}))

    assert (members["status"], members["violations"][0]["field"]) == (status, name)


async def test_unknown_path_is_a_problem_and_other_method_gets_the_allowed_one(http: httpx.AsyncClient) -> None:
    unknown = [await http.get(path) for path in ("/v1", "/v1/translate/", "/v9/translate")]
    other_method = await http.get("/v1/translate")

    answers = [(response.status_code, response.headers["content-type"]) for response in unknown]
    assert answers == [(404, "application/problem+json")] * 3
    assert (other_method.status_code, other_method.headers["allow"]) == (405, "POST")


async def test_index_lists_languages_and_links_to_pages(
    tiny_model: Path, shared_server: RunningServer, http: httpx.AsyncClient
) -> None:
    as_json, as_html = [await http.get("/", headers={"accept": accept}) for accept in ("*/*", "text/html")]
    links = as_json.json()["links"]
    pages = [await http.get(address) for address in links.values()]

    assert as_json.json()["languages"] == {"en": ["de"]}
    assert links.keys() == {"openapi", "models", "health", "readiness", "metrics"}
    assert [page.status_code for page in pages] == [200] * len(links)
    assert as_html.headers["content-type"].startswith("text/html")
    assert all(f'href="{address}"' in as_html.text for address in links.values())
    async with running_server(tiny_model, http__playground=True) as other, http_client(other) as visitor:
        assert (await visitor.get("/")).json()["links"]["playground"] == f"{other.url}/playground"


async def test_models_and_languages_are_listed_over_http(shared_server: RunningServer, http: httpx.AsyncClient) -> None:
    listed, model, version, missing, languages = [
        await http.get(path)
        for path in ("/v1/models", "/v1/models/tiny", "/v1/models/tiny/1", "/v1/models/huge", "/v1/languages")
    ]

    expected = await shared_server.model_service.ListModels(pb.ListModelsRequest())
    assert ParseDict(listed.json(), pb.ListModelsResponse()) == expected
    assert model.json() == version.json() == {"model": listed.json()["models"][0]}
    assert (problem(missing)["reason"], missing.status_code) == ("MODEL_NOT_FOUND", 404)
    assert languages.json() == {"languages": [{"sourceLanguage": "en", "targetLanguages": ["de"]}]}


async def test_failing_document_ends_with_an_error_event(server: RunningServer) -> None:
    document = {"text": "A man. " * 200, "sourceLanguage": "en", "targetLanguage": "de"}
    async with http_client(server) as http, http.stream("POST", "/v1/translate/document", json=document) as response:
        assert response.headers["content-type"] == "text/event-stream"
        body = response.aiter_text()
        begun = await anext(body)
        server.model.halt()
        await server.model.halted_step()
        stopping = asyncio.create_task(asyncio.to_thread(server.app._models.stop))
        server.model.resume()
        sent = events(begun + "".join([part async for part in body]))
        await stopping

    assert {kind for kind, _ in sent[:-1]} == {"sentence"}
    assert (sent[-1][0], sent[-1][1]["code"]) == ("error", "UNAVAILABLE")


async def test_errors_of_keys_and_quotas_have_headers(tiny_model: Path, tmp_path: Path) -> None:
    key = new_key()
    callers = tmp_path / "callers.toml"
    callers.write_text(caller_entry("slow", key, requests_per_s=1))
    async with running_server(tiny_model, access__callers_file=callers) as server, http_client(server) as http:
        for headers in ({}, {"authorization": key}):
            unknown = await http.post("/v1/translate", json=BODY, headers=headers)
            assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/v1/models")).status_code == 401
        answered, limited = [await http.post("/v1/translate", json=BODY, headers=dict(bearer(key))) for _ in range(2)]
        assert (await http.get("/readyz")).status_code == 200

    assert (answered.status_code, limited.status_code, limited.headers["retry-after"]) == (200, 429, "1")


async def test_monitoring_can_have_its_own_port(tiny_model: Path) -> None:
    async with running_server(tiny_model, http__metrics_port=0) as server, http_client(server) as http:
        assert (await server.get("/readyz"))[0] == (await server.get("/metrics"))[0] == 200
        assert (await server.get("/v1/models"))[0] == 404
        assert [(await http.get(path)).status_code for path in ("/readyz", "/metrics")] == [404, 404]
        assert (await http.post("/v1/translate", json=BODY)).status_code == 200


@pytest.mark.parametrize("settings", [{"http__api": False}, {"http__host": EVERYWHERE}])
async def test_api_is_off_if_disabled_or_by_default_for_remote_hosts(
    tiny_model: Path, settings: dict[str, Any]
) -> None:
    async with running_server(tiny_model, **settings) as server, http_client(server) as http:
        assert (await http.post("/v1/translate", json=BODY)).status_code == 404
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({}, "http.host"),
        ({"access.callers_file": "callers.toml"}, "http.host"),
        (
            {"access.callers_file": "c", "tls.certificate_file": "c", "tls.private_key_file": "k"},
            "http.metrics_port",
        ),
    ],
)
def test_remote_api_has_the_conditions_of_grpc(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags={"http.host": EVERYWHERE, "http.api": True, **settings})
    assert caught.value.setting == setting

    load_settings(flags={"http.host": EVERYWHERE, "http.api": True, "access.allow_unauthenticated": True})


async def test_https_uses_the_current_certificate(tiny_model: Path, tmp_path: Path) -> None:
    authority, other = Authority(), Authority()
    files = ServerFiles(tmp_path, authority.sign(NAME))
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    trusting_other = ssl.create_default_context(cadata=other.certificate.decode())
    settings = {**files.settings, "tls__reload_interval_s": 0.01, "http__api": True, "http__metrics_port": 0}
    async with running_server(tiny_model, **settings) as server:
        async with https_client(server, trusting) as http:
            assert (await http.post("/v1/translate", json=BODY)).status_code == 200
            files.replace(other.sign(NAME))
            while not await is_trusted(server, trusting_other):
                pass
            assert (await http.post("/v1/translate", json=BODY)).status_code == 200  # the connection goes on
        assert not await is_trusted(server, trusting)
        assert (await server.get("/readyz"))[0] == 200
        async with http_client(server) as plain:
            with pytest.raises(httpx.RemoteProtocolError):
                await plain.get("/v1/models")


async def is_trusted(server: RunningServer, context: ssl.SSLContext) -> bool:
    try:
        async with https_client(server, context) as http:
            return (await http.get("/v1/models")).status_code == 200
    except httpx.ConnectError:
        return False


async def test_client_certificate_identifies_the_caller_over_http(tiny_model: Path, tmp_path: Path) -> None:
    authority = Authority()
    files, client = ServerFiles(tmp_path, authority.sign(NAME)), authority.sign("shop.example.com")
    shown = ssl.create_default_context(cadata=authority.certificate.decode())
    (tmp_path / "client.pem").write_bytes(key_pem(client) + chain_pem(client))
    shown.load_cert_chain(tmp_path / "client.pem")
    ca = authority.write(tmp_path / "clients.crt")
    settings = {**files.settings, "tls__client_ca_file": ca, "http__api": True, "http__metrics_port": 0}
    async with running_server(tiny_model, **settings) as server:
        with capture_logs() as records:
            async with https_client(server, shown) as http:
                assert (await http.post("/v1/translate", json=BODY)).status_code == 200

    assert [record["caller"] for record in records if record["event"] == "request"] == ["shop.example.com"]


async def test_form_of_another_site_is_rejected_unless_allowed(tiny_model: Path) -> None:
    form = {"q": "A man.", "source": "en", "target": "de"}
    async with (
        running_server(tiny_model, http__allowed_origins="https://shop.example") as server,
        http_client(server) as http,
    ):
        rejected = await http.post("/translate", data=form, headers={"origin": "https://evil.example"})
        listed = await http.post("/translate", data=form, headers={"origin": "https://shop.example"})
        own = await http.post("/translate", data=form, headers={"origin": str(http.base_url)})

    assert (rejected.status_code, listed.status_code, own.status_code) == (403, 200, 200)
    assert listed.headers["access-control-allow-origin"] == "https://shop.example"
