"""TranslateStream over a real connection."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from dragoman.client import AsyncTranslationClient
from dragoman.client.request import TranslationRequest
from dragoman.v1 import translation_pb2 as pb
from tests.captured_logs import capture_logs
from tests.integration.running_server import RunningServer, refusal, request, running_server

METHOD = "TranslateStream"
QUICK = pb.DecodingOptions(beam_size=1, max_target_tokens=2)


def numbered(number: int, **fields: Any) -> pb.TranslateRequest:
    return request(f"A man {number}.", request_id=f"r{number}", options=QUICK, **fields)


def begin(server: RunningServer, *, timeout_s: float | None = None) -> Any:
    """Open a stream to write to and read from."""
    return server.translation.TranslateStream(timeout=timeout_s)


async def write(stream: Any, *requests: pb.TranslateRequest) -> None:
    for one in requests:
        await stream.write(one)


async def the_end_of(stream: Any) -> Any:
    """Read a response that must fail; for `refusal`."""
    return await stream.read()


def reason_and_fields(response: pb.TranslateResponse) -> tuple[str, list[str]]:
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in response.error.details:
        detail.Unpack(info)
        detail.Unpack(bad_request)
    return info.reason, [violation.field for violation in bad_request.field_violations]


async def test_stream_responses_equal_unary_responses(server: RunningServer) -> None:
    stream = begin(server)
    await write(stream, *map(numbered, range(40)))
    await stream.done_writing()

    answers = {response.request_id: response async for response in stream}

    assert await stream.code() is grpc.StatusCode.OK
    assert set(answers) == {f"r{number}" for number in range(40)}
    alone = await server.translation.Translate(numbered(7))
    assert answers["r7"].translations == alone.translations


async def test_response_precedes_the_end_of_the_stream(server: RunningServer) -> None:
    stream = begin(server)

    for number in range(3):
        await write(stream, numbered(number))
        assert (await stream.read()).request_id == f"r{number}"

    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_invalid_request_of_a_stream_fails_alone(server: RunningServer) -> None:
    bad = numbered(1, target_prefixes=["a", "b"])
    stream = begin(server)
    await write(stream, numbered(0), bad, numbered(2))
    await stream.done_writing()

    answers = {response.request_id: response async for response in stream}

    assert await stream.code() is grpc.StatusCode.OK
    assert [answers[f"r{number}"].HasField("error") for number in range(3)] == [False, True, False]
    failed = answers["r1"]
    assert (failed.error.code, failed.translations) == (code_pb2.INVALID_ARGUMENT, [])
    assert reason_and_fields(failed) == ("INVALID_FIELD", ["target_prefixes"])
    alone = await refusal(server.translation.Translate(bad))
    assert alone.message == failed.error.message


@pytest.mark.parametrize("request_id", ["", "x" * 129, "ß"])
async def test_stream_request_needs_a_valid_id(server: RunningServer, request_id: str) -> None:
    stream = begin(server)
    await write(stream, request("A man.", request_id=request_id))

    response = await stream.read()

    assert reason_and_fields(response) == ("INVALID_FIELD", ["request_id"])
    assert response.request_id == request_id
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def test_id_can_be_reused_after_its_response(server: RunningServer) -> None:
    server.model.halt()
    stream = begin(server)
    await write(stream, numbered(0))
    await server.model.halted_step()
    await write(stream, numbered(0))

    assert reason_and_fields(await stream.read()) == ("INVALID_FIELD", ["request_id"])

    server.model.resume()
    assert not (await stream.read()).HasField("error")
    await write(stream, numbered(0))
    assert not (await stream.read()).HasField("error")
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("message", "request_id"),
    [(b"\x3a\x02r1\x0a\x02\xff\xfe", "r1"), (b"\x0a\x02\xff\xfe", ""), (b"\x3a\x02r1\x0a\x7fshort", ""), (b"\xff", "")],
    ids=["invalid UTF-8 in a text", "invalid UTF-8 without an id", "cut off", "no protobuf"],
)
async def test_unparsable_request_of_a_stream_fails_alone(
    server: RunningServer, message: bytes, request_id: str
) -> None:
    stream = server.channel.stream_stream(f"/dragoman.v1.TranslationService/{METHOD}")()
    for raw_request in (numbered(0).SerializeToString(), message, numbered(2).SerializeToString()):
        await stream.write(raw_request)
    await stream.done_writing()

    answers = {one.request_id: one for one in [pb.TranslateResponse.FromString(raw) async for raw in stream]}

    assert await stream.code() is grpc.StatusCode.OK
    assert set(answers) == {"r0", request_id, "r2"}
    assert reason_and_fields(answers[request_id]) == ("INVALID_FIELD", ["request"])
    assert answers["r0"].translations
    assert answers["r2"].translations


async def test_unanswered_requests_of_a_stream_are_limited(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_stream_requests=3) as server:
        server.model.halt()
        stream = begin(server)
        await write(stream, *map(numbered, range(10)))
        await server.until_sample(3, "dragoman_requests_in_flight", method=METHOD)
        await server.model.halted_step()
        await server.model_service.ListModels(pb.ListModelsRequest())  # time enough to read one more

        assert server.sample("dragoman_requests_in_flight", method=METHOD) == 3
        server.model.resume()
        await stream.done_writing()
        assert len([response async for response in stream]) == 10


async def test_stream_requests_are_counted_and_logged(server: RunningServer) -> None:
    with capture_logs() as records:
        stream = begin(server)
        await write(stream, numbered(0), numbered(1, source_language="xx"))
        await stream.done_writing()
        assert len([response async for response in stream]) == 2

    assert server.sample("dragoman_requests_total", method=METHOD, status="OK") == 1
    assert server.sample("dragoman_requests_total", method=METHOD, status="NOT_FOUND") == 1
    assert server.sample("dragoman_request_duration_seconds_count", method=METHOD) == 2
    assert server.sample("dragoman_requests_in_flight", method=METHOD) == server.sample("dragoman_open_streams") == 0
    assert sorted(record["status"] for record in records if record["event"] == "request") == ["NOT_FOUND", "OK"]
    (record,) = [record for record in records if record["event"] == "stream"]
    assert (record["method"], record["status"]) == (METHOD, "OK")


async def test_full_server_rejects_single_stream_requests(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_concurrent_requests=2) as server:
        server.model.halt()
        stream = begin(server)
        await write(stream, numbered(0))
        await server.model.halted_step()
        await write(stream, numbered(1))

        refused = await stream.read()

        assert (refused.request_id, refused.error.code) == ("r1", code_pb2.RESOURCE_EXHAUSTED)
        assert reason_and_fields(refused) == ("OVERLOADED", [])
        server.model.resume()
        assert (await stream.read()).request_id == "r0"
        await stream.done_writing()


async def test_cancelled_stream_cancels_its_requests(server: RunningServer) -> None:
    server.model.halt()
    stream = begin(server)
    await write(stream, *map(numbered, range(5)))
    await server.until_sample(5, "dragoman_requests_in_flight", method=METHOD)
    await server.model.halted_step()

    stream.cancel()

    await server.until_sample(5, "dragoman_requests_total", method=METHOD, status="CANCELLED")
    await server.until_sample(0, "dragoman_open_streams")
    server.model.resume()
    await server.until_sample(5, "dragoman_segments_total", outcome="cancelled")


async def test_deadline_applies_to_the_whole_stream(server: RunningServer) -> None:
    server.model.halt()
    stream = begin(server, timeout_s=0.3)
    await write(stream, numbered(0))

    error = await refusal(the_end_of(stream))

    assert error.code == "DEADLINE_EXCEEDED"
    await server.until_sample(0, "dragoman_open_streams")


async def test_idle_stream_ends_after_the_default_time(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__default_stream_timeout_s=0.01) as server:
        stream = begin(server)

        error = await refusal(the_end_of(stream))

        assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


async def test_drain_answers_admitted_stream_requests(
    server: RunningServer,
) -> None:
    server.model.halt()
    stream = begin(server)
    await write(stream, numbered(0))
    await server.model.halted_step()
    drain = asyncio.ensure_future(server.app.drain())
    await server.until_sample(0, "dragoman_ready")

    await write(stream, numbered(1))
    refused = await stream.read()
    server.model.resume()
    answered = await stream.read()

    assert (refused.request_id, refused.error.code) == ("r1", code_pb2.UNAVAILABLE)
    assert reason_and_fields(refused) == ("DRAINING", [])
    assert (answered.request_id, answered.HasField("error")) == ("r0", False)
    error = await refusal(the_end_of(stream))
    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")
    assert await drain


async def test_drain_ends_an_idle_stream(server: RunningServer) -> None:
    stream = begin(server)
    await write(stream, numbered(0))
    await stream.read()

    assert await server.app.drain()

    error = await refusal(the_end_of(stream))
    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")


async def test_draining_server_rejects_streams(server: RunningServer) -> None:
    await server.app.drain()

    error = await refusal(the_end_of(begin(server)))

    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")


async def test_client_pairs_responses_by_id(server: RunningServer) -> None:
    async def requests() -> AsyncIterator[TranslationRequest]:
        for number in range(3):
            yield {
                "texts": [f"A man {number}."],
                "source_language": "en",
                "target_language": "de",
                "request_id": f"r{number}",
            }

    client = AsyncTranslationClient(f"127.0.0.1:{server.port}")

    answers = [answer async for answer in client.translate_stream(requests())]

    await client.close()
    assert {answer.request_id for answer in answers} == {"r0", "r1", "r2"}
