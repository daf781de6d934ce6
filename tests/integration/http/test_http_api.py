"""The HTTP API of a real server with the tiny model."""

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
from dragoman_service.security.api_keys import new_key, store
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles, chain_pem, key_pem
from tests.integration.running_server import PATIENCE_S, RunningServer, listening_server, running_server, until

BODY = {"texts": ["A man rides a bicycle."], "sourceLanguage": "en", "targetLanguage": "de"}
DOCUMENT = {"text": "A man rides a bicycle. Two children play.", "sourceLanguage": "en", "targetLanguage": "de"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - reached on loopback here
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SHOP, SLOW = new_key(), new_key()


@contextlib.asynccontextmanager
async def client_of(server: RunningServer, *, scheme: str = "http", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    address = f"{scheme}://{NAME if scheme == 'https' else '127.0.0.1'}:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False, **options) as client:
        yield client


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


def problem(response: httpx.Response) -> dict[str, Any]:
    """Check that a response is a problem of RFC 9457; return it."""
    members: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert members["status"] == response.status_code
    assert members["requestId"] == response.headers["x-request-id"]
    return members


def events(body: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the server-sent events of a stream."""
    lines = [event.split("\n") for event in body.split("\n\n")[:-1]]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in lines]


async def test_http_and_grpc_return_equal_translations(server: RunningServer, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/translate", json={**BODY, "options": {"numHypotheses": 2}, "requestId": "r1"})

    expected = await server.translate(*BODY["texts"], options=pb.DecodingOptions(num_hypotheses=2), request_id="r1")
    answered = ParseDict(response.json(), pb.TranslateResponse())
    answered.timings.CopyFrom(expected.timings)
    assert (response.status_code, answered) == (200, expected)
    assert response.headers["x-request-id"] == "r1"


async def test_response_has_fields_with_default_values(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/translate", json={**BODY, "texts": [""]})

    (translation,) = response.json()["translations"]
    assert translation == {
        "hypotheses": [{"text": "", "score": 0.0, "tokens": [], "tokenLogProbs": [], "alignment": [], "attention": []}],
        "sentences": [],
        "warnings": [],
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


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'"texts"',
        b"{",
        b'{"texts": [NaN]}',
        b'{"options": {"lengthPenalty": Infinity}}',
        b'{"texts": ["\xff"]}',
        b"\xef\xbb\xbf{}",
        b'{"texts": [], "texts": []}',
        b"[" * 100_000,
        b'{"options": ' * 50_000,
        b'{"texts": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        b'{"options": {"beamSize": ' + b"9" * 5_000 + b"}}",
        b'{"options": {"lengthPenalty": 1e999}}',
        b'{"options": {"beamSize": -0.0000001}}',
        b"\x00" * 1000,
    ],
)
async def test_malformed_bodies_are_client_errors(http: httpx.AsyncClient, content: bytes) -> None:
    with capture_logs() as records:
        members = problem(await http.post("/v1/translate", content=content, headers=JSON))

    assert (members["status"], members["reason"]) == (400, "INVALID_FIELD")
    assert [record["event"] for record in records if record.get("log_level") in {"error", "critical"}] == []


async def test_large_body_is_rejected_before_it_is_read(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_message_bytes=2048) as server, client_of(server) as http:
        declared = await http.post("/v1/translate", json={**BODY, "texts": ["x" * 3000]})
        endless = await http.post("/v1/translate", content=chunks(b" " * 1024, 64), headers=JSON)
        assert (await http.post("/v1/translate", json=BODY)).status_code == 200

    assert [declared.status_code, endless.status_code] == [413, 413]
    assert problem(declared)["violations"][0]["field"] == problem(endless)["violations"][0]["field"] == "request"


@contextlib.asynccontextmanager
async def raw_connection(server: RunningServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http_port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


HEAD = (
    b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
)


async def test_missing_body_times_out(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, grpc__message_timeout_s=0.1) as server,
        raw_connection(server) as (
            reader,
            writer,
        ),
    ):
        writer.write(HEAD)
        answer = await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE_S)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"reason":"DEADLINE_EXCEEDED"' in answer
    assert server.sample("dragoman_limit_refusals_total", limit="message_timeout_s") == 1


async def test_disconnect_during_the_body_releases_resources(server: RunningServer) -> None:
    with capture_logs() as records:
        async with raw_connection(server) as (_, writer):
            writer.write(HEAD)
            await writer.drain()
            await server.until_sample(1, "dragoman_unread_calls")
        await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")

    assert server.sample("dragoman_unread_calls") == server.sample("dragoman_received_bytes") == 0
    assert [record["event"] for record in records] == ["request"]


async def chunks(chunk: bytes, number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield chunk


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"content-type": "text/plain"}, 415, "content-type"),
        ({"content-type": "application/json; charset=utf-16"}, 415, "content-type"),
        ({"x-request-timeout": "soon"}, 400, "x-request-timeout"),
        ({"x-request-timeout": "nan"}, 400, "x-request-timeout"),
        ({"x-request-timeout": "0"}, 400, "x-request-timeout"),
        ({"x-request-timeout": "-1"}, 400, "x-request-timeout"),
    ],
)
async def test_invalid_header_is_named(
    http: httpx.AsyncClient, headers: dict[str, str], status: int, field: str
) -> None:
    members = problem(await http.post("/v1/translate", content=json.dumps(BODY), headers={**JSON, **headers}))

    assert (members["status"], members["violations"][0]["field"]) == (status, field)


@pytest.mark.parametrize("path", ["/v1", "/v1/translate/", "/v9/translate"])
async def test_unknown_path_is_a_problem(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)

    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


async def test_other_method_gets_the_allowed_method(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/translate")

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_models_and_languages_are_listed_over_http(server: RunningServer, http: httpx.AsyncClient) -> None:
    listed, model, version, missing, languages = [
        await http.get(path)
        for path in ("/v1/models", "/v1/models/tiny", "/v1/models/tiny/1", "/v1/models/huge", "/v1/languages")
    ]

    expected = await server.model_service.ListModels(pb.ListModelsRequest())
    assert ParseDict(listed.json(), pb.ListModelsResponse()) == expected
    assert model.json() == version.json() == {"model": listed.json()["models"][0]}
    assert (problem(missing)["reason"], missing.status_code) == ("MODEL_NOT_FOUND", 404)
    assert languages.json() == {"languages": [{"sourceLanguage": "en", "targetLanguages": ["de"]}]}


async def test_document_is_a_stream_of_sentences(server: RunningServer, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/translate/document", json=DOCUMENT, headers={"x-request-id": "d1"})

    sent = events(response.text)
    whole = await server.translate(DOCUMENT["text"])
    sentences = [data for kind, data in sent if kind == "sentence"]
    assert (response.headers["content-type"], response.headers["x-request-id"]) == ("text/event-stream", "d1")
    assert [kind for kind, _ in sent] == ["sentence", "sentence", "end"]
    assert "".join(sentence["text"] for sentence in sentences) == whole.translations[0].hypotheses[0].text
    assert [(sentence["index"], sentence["requestId"]) for sentence in sentences] == [(0, "d1"), (1, "d1")]


async def test_failing_document_ends_with_an_error_event(server: RunningServer, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/v1/translate/document", json={**DOCUMENT, "text": "A man. " * 200}) as response:
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


async def test_rejected_document_is_a_problem(http: httpx.AsyncClient) -> None:
    members = problem(await http.post("/v1/translate/document", json={**DOCUMENT, "text": ""}))

    assert (members["status"], members["violations"][0]["field"]) == (400, "text")


async def test_http_request_is_counted_logged_and_traced(server: RunningServer, http: httpx.AsyncClient) -> None:
    traceparent = f"00-{TRACE_ID}-b7ad6b7169203331-01"
    with capture_logs() as records:
        await http.post("/v1/translate", json=BODY, headers={"x-request-id": "r7", "traceparent": traceparent})
        await http.post("/v1/translate", json={**BODY, "model": "huge"})

    answered, failed = [record for record in records if record["event"] == "request"]
    assert server.sample("dragoman_requests_total", method="Translate", status="OK") == 1
    assert server.sample("dragoman_rejected_requests_total", reason="model_not_found") == 1
    assert (answered["method"], answered["status"], answered["model"]) == ("Translate", "OK", "tiny/1")
    assert answered["peer"].startswith("ipv4:127.0.0.1:")
    assert answered["caller"] == "ipv4:127.0.0.1"
    assert (failed["status"], failed["reason"], failed["field"]) == ("NOT_FOUND", "MODEL_NOT_FOUND", "model")


async def test_deadline_of_the_header_is_enforced(server: RunningServer, http: httpx.AsyncClient) -> None:
    server.model.halt()

    members = problem(await http.post("/v1/translate", json=BODY, headers={"x-request-timeout": "0.1"}))

    assert (members["status"], members["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert members["metadata"]["stage"] in {"queue", "decode", "stream"}


async def test_disconnect_cancels_the_translation(server: RunningServer) -> None:
    server.model.halt()
    async with client_of(server) as http:
        asking = asyncio.create_task(http.post("/v1/translate", json=BODY))
        await server.model.halted_step()
        asking.cancel()
        await asyncio.wait((asking,))

    await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")
    server.model.resume()
    await server.until_sample(1, "dragoman_segments_total", outcome="cancelled")


async def test_loading_and_draining_servers_report_their_state(tiny_model: Path) -> None:
    async with listening_server(tiny_model) as server, client_of(server) as http:
        loading = problem(await http.post("/v1/translate", json=BODY))
        await server.app.load()
        answered = await http.post("/v1/translate", json=BODY)
        await server.app.drain()
        draining = problem(await http.post("/v1/translate", json=BODY))

    assert (loading["status"], loading["reason"]) == (503, "STARTING")
    assert answered.status_code == 200
    assert (draining["status"], draining["reason"]) == (503, "DRAINING")


async def test_drain_waits_for_http_requests(server: RunningServer, http: httpx.AsyncClient) -> None:
    server.model.halt()
    asking = asyncio.create_task(http.post("/v1/translate", json=BODY))
    await server.model.halted_step()
    draining = asyncio.create_task(server.app.drain())
    await until(lambda: not server.app._is_ready)
    server.model.resume()

    assert await draining
    assert (await asking).status_code == 200


def callers_file(directory: Path) -> Path:
    file = directory / "callers.toml"
    file.write_text(
        f'[[caller]]\nname = "shop"\nkeys = ["{store(SHOP)}"]\npermissions = ["translate"]\n'
        f'[[caller]]\nname = "slow"\nkeys = ["{store(SLOW)}"]\npermissions = ["translate"]\nrequests_per_s = 1\n'
    )
    return file


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_key_and_quota_apply_over_http(tiny_model: Path, tmp_path: Path) -> None:
    async with (
        running_server(tiny_model, access__callers_file=callers_file(tmp_path)) as server,
        client_of(server) as http,
    ):
        for headers in ({}, bearer(new_key()), {"authorization": SHOP}):
            unknown = await http.post("/v1/translate", json=BODY, headers=headers)
            assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
            assert problem(unknown)["reason"] == "UNAUTHENTICATED"
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.post("/v1/translate", json=BODY, headers=bearer(SHOP))).status_code == 200
        assert (await http.post("/v1/translate", json=BODY, headers=bearer(SLOW))).status_code == 200
        limited = await http.post("/v1/translate", json=BODY, headers=bearer(SLOW))
        assert (await http.get("/readyz")).status_code == 200

    assert (problem(limited)["status"], problem(limited)["reason"]) == (429, "RATE_LIMITED")
    assert limited.headers["retry-after"] == "1"


async def test_monitoring_can_have_its_own_port(tiny_model: Path) -> None:
    async with running_server(tiny_model, http__metrics_port=0) as server, client_of(server) as http:
        assert (await server.get("/readyz"))[0] == (await server.get("/metrics"))[0] == 200
        assert (await server.get("/v1/models"))[0] == 404
        assert [(await http.get(path)).status_code for path in ("/readyz", "/metrics")] == [404, 404]
        assert (await http.post("/v1/translate", json=BODY)).status_code == 200


async def test_api_can_be_off(tiny_model: Path) -> None:
    async with running_server(tiny_model, http__api=False) as server, client_of(server) as http:
        assert (await http.post("/v1/translate", json=BODY)).status_code == 404
        assert (await http.get("/readyz")).status_code == 200


async def test_remote_api_is_off_by_default(tiny_model: Path) -> None:
    async with running_server(tiny_model, http__host=EVERYWHERE) as server, client_of(server) as http:
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
        async with client_of(server, scheme="https", verify=trusting) as http:
            assert (await http.post("/v1/translate", json=BODY)).status_code == 200
            files.replace(other.sign(NAME))
            while not await is_trusted(server, trusting_other):
                pass
            assert (await http.post("/v1/translate", json=BODY)).status_code == 200  # the connection goes on
        assert not await is_trusted(server, trusting)
        assert (await server.get("/readyz"))[0] == 200
        async with client_of(server) as plain:
            with pytest.raises(httpx.RemoteProtocolError):
                await plain.get("/v1/models")


async def is_trusted(server: RunningServer, context: ssl.SSLContext) -> bool:
    try:
        async with client_of(server, scheme="https", verify=context) as http:
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
            async with client_of(server, scheme="https", verify=shown) as http:
                assert (await http.post("/v1/translate", json=BODY)).status_code == 200

    assert [record["caller"] for record in records if record["event"] == "request"] == ["shop.example.com"]


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "evil.example", 421),
        ({}, "evil.example:9464", 421),
        ({}, "localhost.evil.example", 421),
        ({}, "localhost:9464", 200),
        ({}, "LocalHost.", 200),
        ({}, "a.localhost", 200),
        ({}, "127.0.0.1", 200),
        ({}, "10.0.0.1:80", 200),
        ({}, "[::1]:9464", 200),
        ({"http__allowed_hosts": ["translate.example"]}, "Translate.example:80", 200),
        ({"http__allowed_hosts": "a.example, translate.example"}, "evil.example", 421),
        ({"http__host": EVERYWHERE}, "any.example", 200),
        ({"http__host": EVERYWHERE, "http__allowed_hosts": ["translate.example"]}, "any.example", 421),
    ],
)
async def test_dns_rebinding_is_rejected(tiny_model: Path, settings: dict[str, Any], host: str, status: int) -> None:
    async with listening_server(tiny_model, **settings) as server:
        address = f"http://127.0.0.1:{server.ports.http_port}"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http:
            response = await http.get("/healthz", headers={"host": host})

    assert response.status_code == status


async def test_form_of_another_site_is_rejected_unless_allowed(tiny_model: Path) -> None:
    form = {"q": "A man.", "source": "en", "target": "de"}
    async with (
        running_server(tiny_model, http__allowed_origins="https://shop.example") as server,
        client_of(server) as http,
    ):
        refused = await http.post("/translate", data=form, headers={"origin": "https://evil.example"})
        listed = await http.post("/translate", data=form, headers={"origin": "https://shop.example"})
        own = await http.post("/translate", data=form, headers={"origin": str(http.base_url)})

    assert (refused.status_code, listed.status_code, own.status_code) == (403, 200, 200)
    assert listed.headers["access-control-allow-origin"] == "https://shop.example"
