"""Fairness between callers of a real server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.cable import Cable
from tests.integration.running_server import RunningServer, refusal, request, running_server

TEXT = "A man."
OTHER_HOST = "127.0.0.2"
ONE_STEP = pb.DecodingOptions(max_target_tokens=1)
NUM_QUEUED = 30
SMALL_QUEUE = {
    "scheduling__max_queue_segments": 4,
    "limits__max_request_sentences": 2,
    "scheduling__max_batch_segments": 1,
}


async def halt_with_backlog(server: RunningServer, *, num_queued: int) -> list["asyncio.Future[Any]"]:
    """Halt the model in a request, and queue the sentences of another one; return both calls."""
    server.model.halt()
    running = asyncio.ensure_future(server.translate(TEXT, options=ONE_STEP))
    await server.model.halted_step()
    queued = asyncio.ensure_future(server.translate(*[TEXT] * num_queued, options=ONE_STEP))
    await server.until_sample(num_queued, "dragoman_queue_segments")
    return [running, queued]


@pytest.mark.parametrize("priority", [pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK])
async def test_small_request_does_not_wait_for_many_segments_of_another_caller(
    tiny_model: Path, priority: pb.Priority
) -> None:
    async with (
        running_server(tiny_model, scheduling__max_batch_segments=1) as server,
        Cable(server.port, from_address=OTHER_HOST) as cable,
    ):
        other = pb_grpc.TranslationServiceStub(cable.channel)
        calls = await halt_with_backlog(server, num_queued=NUM_QUEUED)
        calls.append(asyncio.ensure_future(server.translate(*[TEXT] * NUM_QUEUED, options=ONE_STEP, priority=priority)))
        await server.until_sample(2 * NUM_QUEUED, "dragoman_queue_segments")
        small = asyncio.ensure_future(other.Translate(request(TEXT, options=ONE_STEP)))
        await server.until_sample(2 * NUM_QUEUED + 1, "dragoman_queue_segments")

        server.model.resume()

        await small
        assert server.sample("dragoman_queue_segments") > NUM_QUEUED
        await asyncio.gather(*calls)


async def test_one_caller_cannot_fill_the_queue(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, **SMALL_QUEUE) as server,
        Cable(server.port, from_address=OTHER_HOST) as cable,
    ):
        other = pb_grpc.TranslationServiceStub(cable.channel)
        calls = await halt_with_backlog(server, num_queued=2)

        error = await refusal(server.translate(TEXT, options=ONE_STEP))
        calls.append(asyncio.ensure_future(other.Translate(request(TEXT, options=ONE_STEP))))
        await server.until_sample(3, "dragoman_queue_segments")
        server.model.resume()

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert "limit of 2 segments of this caller" in error.message
        assert error.retry_delay_ms > 0
        assert all([(await call).translations for call in calls])


async def test_options_of_a_request_cannot_exceed_the_decode_cost_of_the_queue(tiny_model: Path) -> None:
    small = {"limits__max_request_decode_cost": 4_000, "scheduling__max_queue_decode_cost": 8_000}
    async with (
        running_server(tiny_model, **small, scheduling__max_batch_segments=1) as server,
        Cable(server.port, from_address=OTHER_HOST) as cable,
    ):
        other = pb_grpc.TranslationServiceStub(cable.channel)
        calls = await halt_with_backlog(server, num_queued=2)
        longest = pb.DecodingOptions(beam_size=16, min_target_tokens=15)

        error = await refusal(server.translate(*[TEXT * 4] * 16, options=longest))
        calls.append(asyncio.ensure_future(server.translate(*[TEXT] * 12, options=longest)))
        await server.until_sample(2 + 12, "dragoman_queue_segments")
        rejection = await refusal(server.translate(*[TEXT] * 12, options=longest))
        calls.append(asyncio.ensure_future(other.Translate(request(*[TEXT] * 2, options=longest))))
        await server.until_sample(2 + 12 + 2, "dragoman_queue_segments")
        server.model.resume()

        assert (error.code, error.fields) == ("INVALID_ARGUMENT", ["texts"])
        assert (rejection.code, rejection.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert "decode cost of this caller" in rejection.message
        assert all([(await call).translations for call in calls])
