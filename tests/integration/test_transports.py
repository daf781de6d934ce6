"""Features of the native API over each of its transports."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key
from tests.captured_logs import capture_logs
from tests.integration.running_server import (
    RunningServer,
    caller_entry,
    listening_server,
    running_server,
)
from tests.integration.transports import TRANSPORTS, Response, Transport
from tests.waiting import until

SENTENCE = "A man rides a bicycle."
TEXT = "  A man rides a bicycle. Two children play.\n\n- The train.\r\n\t- Dr. Smith reads... a long letter?\n...\n"
SHOP, SLOW = new_key(), new_key()


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


def num_requests(server: RunningServer, transport: Transport, status: str) -> float:
    return server.sample("dragoman_requests_total", method=transport.method, status=status)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (TEXT, {}),
        (TEXT, {"target_prefix": "Ein Mann"}),
        (TEXT, {"sampling": pb.SamplingOptions(seed=5)}),
        (SENTENCE, {"beam_size": 3, "num_hypotheses": 3}),
        ("<p>A man</p>", {"format": pb.TEXT_FORMAT_HTML}),
        ("Open {name} at https://example.com/x?y=1!", {}),
    ],
)
async def test_translation_equals_the_unary_response(
    shared_server: RunningServer, transport: Transport, text: str, options: dict[str, Any]
) -> None:
    response = await transport.translate(shared_server, text, options=pb.DecodingOptions(**options))

    (whole,) = (await shared_server.translate(text, options=pb.DecodingOptions(**options))).translations
    assert response == Response(hypotheses=tuple(each.text for each in whole.hypotheses), request_id="r-1")
    protected = ("{name}", "https://example.com/x?y=1") if "{name}" in text else ()
    assert [response.hypotheses[0].count(part) for part in protected] == [1] * len(protected)


async def test_request_is_counted_timed_and_logged(server: RunningServer, transport: Transport) -> None:
    with capture_logs() as records:
        await transport.translate(server, SENTENCE)
        await transport.translate(server, SENTENCE, model="huge")
        await until(lambda: [record["event"] for record in records].count("request") == 2)

    answered, rejected = [record for record in records if record["event"] == "request"]
    assert [answered[name] for name in ("method", "status", "model")] == [transport.method, "OK", "tiny/1"]
    assert answered["peer"].startswith("ipv4:127.0.0.1:")
    assert answered["caller"] == "ipv4:127.0.0.1"
    assert [rejected[name] for name in ("status", "reason", "field")] == ["NOT_FOUND", "MODEL_NOT_FOUND", "model"]
    assert (num_requests(server, transport, "OK"), num_requests(server, transport, "NOT_FOUND")) == (1, 1)
    assert server.sample("dragoman_request_duration_seconds_count", method=transport.method) == 2
    assert server.sample("dragoman_requests_in_flight", method=transport.method) == 0
    assert server.sample("dragoman_rejected_requests_total", reason="model_not_found") == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"options": pb.DecodingOptions(beam_size=99)}, ("INVALID_ARGUMENT", "INVALID_FIELD", ("options.beam_size",))),
        ({"target_language": "xx"}, ("NOT_FOUND", "MODEL_NOT_FOUND", ("target_language",))),
        (
            {"options": pb.DecodingOptions(glossary="x")},
            ("NOT_FOUND", "GLOSSARY_NOT_FOUND", ("options.glossary",)),
        ),
    ],
)
async def test_rejection_names_the_field(
    shared_server: RunningServer, transport: Transport, fields: dict[str, Any], error: tuple[str, str, tuple[str, ...]]
) -> None:
    response = await transport.translate(shared_server, SENTENCE, **fields)

    code, reason, names = error
    assert response == Response(code=code, reason=reason, fields=names, request_id="r-1")


async def test_missing_source_language_is_detected(shared_server: RunningServer, transport: Transport) -> None:
    response = await transport.translate(shared_server, SENTENCE, source_language="")

    assert response.detected_language == "en"
    assert response.hypotheses == (await transport.translate(shared_server, SENTENCE)).hypotheses


async def test_glossary_is_used(tiny_model: Path, tmp_path: Path, transport: Transport) -> None:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\n")
    async with running_server(tiny_model, models__glossaries_directory=tmp_path) as server:
        response = await transport.translate(server, SENTENCE, options=pb.DecodingOptions(glossary="it"))

    assert response.hypotheses[0].count("Velo") == 1


async def test_deadline_ends_the_work(server: RunningServer, transport: Transport) -> None:
    server.model.halt()

    response = await transport.translate(server, SENTENCE, timeout_s=0.3)

    assert response.code == "DEADLINE_EXCEEDED"
    await until(lambda: num_requests(server, transport, "DEADLINE_EXCEEDED") == 1)
    server.model.resume()
    await server.until_sample(1, "dragoman_segments_total", outcome="cancelled")


async def test_cancelled_call_frees_queue_and_batch(server: RunningServer, transport: Transport) -> None:
    server.model.halt()
    call = asyncio.ensure_future(transport.translate(server, "A man. " * 50))
    await server.model.halted_step()

    call.cancel()
    await asyncio.wait((call,))

    await until(lambda: num_requests(server, transport, "CANCELLED") == 1)
    for gauge in ("dragoman_queue_segments", "dragoman_queue_tokens", "dragoman_open_streams"):
        await server.until_sample(0, gauge)
    server.model.resume()
    await server.until_sample(50, "dragoman_segments_total", outcome="cancelled")
    await server.until_sample(0, "dragoman_requests_in_flight", method=transport.method)
    assert (await server.translate(SENTENCE)).translations


async def test_loading_server_rejects_requests(tiny_model: Path, transport: Transport) -> None:
    async with listening_server(tiny_model) as server:
        loading = await transport.translate(server, SENTENCE)
        await server.app.load()
        ready = await transport.translate(server, SENTENCE)

    assert [(each.code, each.reason) for each in (loading, ready)] == [("UNAVAILABLE", "STARTING"), ("OK", "")]


@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if "HTTP" in each.name], ids=lambda each: each.name)
async def test_draining_server_rejects_requests_of_new_connections(server: RunningServer, transport: Transport) -> None:
    await server.app.drain()

    draining = await transport.translate(server, SENTENCE)

    assert (draining.code, draining.reason) == ("UNAVAILABLE", "DRAINING")


async def test_drain_waits_for_admitted_requests(server: RunningServer, transport: Transport) -> None:
    server.model.halt()
    call = asyncio.ensure_future(transport.translate(server, TEXT))
    await server.model.halted_step()
    drain = asyncio.ensure_future(server.app.drain())
    await server.until_sample(0, "dragoman_ready")
    server.model.resume()

    assert (await call).code == "OK"
    assert await drain


async def test_request_beyond_the_limit_of_concurrent_requests_is_rejected(
    tiny_model: Path, transport: Transport
) -> None:
    async with running_server(tiny_model, grpc__max_concurrent_requests=2) as server:
        server.model.halt()
        first = []
        for number in (1, 2):
            first.append(asyncio.ensure_future(server.translate(SENTENCE)))
            await server.until_sample(number, "dragoman_requests_in_flight", method="Translate")

        response = await transport.translate(server, SENTENCE)

        server.model.resume()
        await asyncio.gather(*first)
    assert (response.code, response.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert server.sample("dragoman_rejected_requests_total", reason="overloaded") == 1


async def test_keys_and_quotas_apply(tiny_model: Path, tmp_path: Path, transport: Transport) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(caller_entry("shop", SHOP) + caller_entry("slow", SLOW, tokens_per_min=6))
    async with running_server(tiny_model, access__callers_file=callers) as server:
        keys = (None, new_key(), SHOP[:-1], SHOP, SLOW, SLOW, SHOP)
        responses = [await transport.translate(server, "A man. " * 3, key=key) for key in keys]

    assert [(response.code, response.reason, response.retry_delay_s > 0) for response in responses] == [
        *[("UNAUTHENTICATED", "UNAUTHENTICATED", False)] * 3,
        ("OK", "", False),
        ("OK", "", False),
        ("RESOURCE_EXHAUSTED", "RATE_LIMITED", True),
        ("OK", "", False),
    ]
    assert server.sample("dragoman_rejected_requests_total", reason="unauthenticated") == 3
    assert server.sample("dragoman_rejected_requests_total", reason="rate_limited") == 1
