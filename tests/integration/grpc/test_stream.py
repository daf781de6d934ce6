"""TranslateStream over a real connection."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.captured_logs import capture_logs
from tests.integration.running_server import RunningServer, rejection, request, running_server
from tests.integration.transports import Response, of_stream_response

METHOD = "TranslateStream"
QUICK = pb.DecodingOptions(beam_size=1, max_target_tokens=2)


def numbered(number: int, **fields: Any) -> pb.TranslateRequest:
    return request(f"A man {number}.", request_id=f"r{number}", options=QUICK, **fields)


async def begin(server: RunningServer, *requests: pb.TranslateRequest) -> Any:
    """Open a stream and send requests."""
    stream = server.translation.TranslateStream()
    for each in requests:
        await stream.write(each)
    return stream


async def responses_by_id(stream: Any) -> dict[str, pb.TranslateResponse]:
    """End a stream and return its responses."""
    await stream.done_writing()
    responses = {response.request_id: response async for response in stream}
    assert await stream.code() is grpc.StatusCode.OK
    return responses


def invalid(field: str, request_id: str) -> Response:
    return Response(code="INVALID_ARGUMENT", reason="INVALID_FIELD", fields=(field,), request_id=request_id)


async def test_each_request_of_a_stream_is_answered(shared_server: RunningServer) -> None:
    responses = await responses_by_id(await begin(shared_server, *map(numbered, range(40))))

    assert set(responses) == {f"r{number}" for number in range(40)}
    alone = await shared_server.translation.Translate(numbered(7))
    assert responses["r7"].translations == alone.translations


async def test_response_precedes_the_end_of_the_stream(shared_server: RunningServer) -> None:
    stream = await begin(shared_server)

    for number in range(3):
        await stream.write(numbered(number))
        assert (await stream.read()).request_id == f"r{number}"

    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_invalid_request_of_a_stream_fails_alone(shared_server: RunningServer) -> None:
    bad = numbered(1, target_prefixes=["a", "b"])

    responses = await responses_by_id(await begin(shared_server, numbered(0), bad, numbered(2)))

    assert [responses[f"r{number}"].HasField("error") for number in range(3)] == [False, True, False]
    failed = responses["r1"]
    assert of_stream_response(failed) == invalid("target_prefixes", "r1")
    assert not failed.translations
    assert (await rejection(shared_server.translation.Translate(bad))).message == failed.error.message


@pytest.mark.parametrize(
    ("message", "request_id"),
    [(b"\x3a\x02r1\x0a\x02\xff\xfe", "r1"), (b"\x0a\x02\xff\xfe", ""), (b"\x3a\x02r1\x0a\x7fshort", ""), (b"\xff", "")],
    ids=["invalid UTF-8 in a text", "invalid UTF-8 without an id", "cut off", "no protobuf"],
)
async def test_unparsable_request_of_a_stream_fails_alone(
    shared_server: RunningServer, message: bytes, request_id: str
) -> None:
    stream = shared_server.channel.stream_stream(f"/dragoman.v1.TranslationService/{METHOD}")()
    for raw_request in (numbered(0).SerializeToString(), message, numbered(2).SerializeToString()):
        await stream.write(raw_request)
    await stream.done_writing()

    responses = {each.request_id: each for each in [pb.TranslateResponse.FromString(raw) async for raw in stream]}

    assert await stream.code() is grpc.StatusCode.OK
    assert set(responses) == {"r0", request_id, "r2"}
    assert of_stream_response(responses[request_id]) == invalid("request", request_id)
    assert responses["r0"].translations
    assert responses["r2"].translations


@pytest.mark.parametrize("request_id", ["", "x" * 129, "ß"])
async def test_stream_request_needs_a_valid_id(shared_server: RunningServer, request_id: str) -> None:
    responses = await responses_by_id(await begin(shared_server, request("A man.", request_id=request_id)))

    assert of_stream_response(responses[request_id]) == invalid("request_id", request_id)


async def test_id_can_be_reused_after_its_response(server: RunningServer) -> None:
    server.model.halt()
    stream = await begin(server, numbered(0))
    await server.model.halted_step()
    await stream.write(numbered(0))

    assert of_stream_response(await stream.read()) == invalid("request_id", "r0")

    server.model.resume()
    assert not (await stream.read()).HasField("error")
    await stream.write(numbered(0))
    assert not (await stream.read()).HasField("error")


async def test_unanswered_requests_of_a_stream_are_limited(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_stream_requests=3) as server:
        server.model.halt()
        stream = await begin(server, *map(numbered, range(10)))
        await server.until_sample(3, "dragoman_requests_in_flight", method=METHOD)
        await server.model.halted_step()
        await server.model_service.ListModels(pb.ListModelsRequest())  # time enough to read one more

        assert server.sample("dragoman_requests_in_flight", method=METHOD) == 3
        server.model.resume()
        assert len(await responses_by_id(stream)) == 10


async def test_end_of_a_stream_is_logged(server: RunningServer) -> None:
    with capture_logs() as records:
        await responses_by_id(await begin(server, numbered(0)))

    assert server.sample("dragoman_open_streams") == 0
    (record,) = [record for record in records if record["event"] == "stream"]
    assert (record["method"], record["status"]) == (METHOD, "OK")


async def test_idle_stream_ends_after_the_default_time(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__default_stream_timeout_s=0.01) as server:
        error = await rejection((await begin(server)).read())

    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


async def test_drain_answers_admitted_stream_requests(server: RunningServer) -> None:
    server.model.halt()
    stream = await begin(server, numbered(0))
    await server.model.halted_step()
    drain = asyncio.ensure_future(server.app.drain())
    await server.until_sample(0, "dragoman_ready")

    await stream.write(numbered(1))  # the server already waits for this request
    await server.until_sample(2, "dragoman_requests_in_flight", method="TranslateStream")
    server.model.resume()
    answered = [of_stream_response(await stream.read()) for _ in range(2)]

    assert {(each.request_id, each.code) for each in answered} == {("r0", "OK"), ("r1", "OK")}
    error = await rejection(stream.read())
    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")
    assert await drain


async def test_drain_ends_an_idle_stream(server: RunningServer) -> None:
    stream = await begin(server, numbered(0))
    await stream.read()

    assert await server.app.drain()

    error = await rejection(stream.read())
    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")
