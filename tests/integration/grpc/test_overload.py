"""Overload, deadlines and cancellation as callers see them."""

import asyncio
from pathlib import Path

import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer, refusal, running_server, until

ONE_AT_A_TIME = {
    "scheduling__max_batch_segments": 1,
    "scheduling__max_queue_segments": 1,
    "scheduling__max_caller_queue_share": 1,
    "limits__max_request_sentences": 1,
}


async def test_full_queue_rejects_immediately_with_a_retry_delay(tiny_model: Path) -> None:
    async with running_server(tiny_model, **ONE_AT_A_TIME) as server:
        server.model.halt()
        decoding = asyncio.ensure_future(server.translate("A man."))
        await server.model.halted_step()
        waiting = asyncio.ensure_future(server.translate("A man."))
        await server.until_sample(1, "dragoman_queue_segments")

        error = await refusal(server.translate("A man."))

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert error.retry_delay_ms > 0
        assert error.trailing["grpc-retry-pushback-ms"] == str(error.retry_delay_ms)
        assert server.sample("dragoman_rejected_requests_total", reason="overloaded") == 1
        server.model.resume()
        assert [len(response.translations) for response in await asyncio.gather(decoding, waiting)] == [1, 1]


async def test_call_beyond_the_limit_is_rejected(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_concurrent_requests=1) as server:
        server.model.halt()
        first = asyncio.ensure_future(server.translate("A man."))
        await server.model.halted_step()

        error = await refusal(server.translate("A man."))

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert error.trailing["grpc-retry-pushback-ms"] == str(error.retry_delay_ms)
        assert server.sample("dragoman_rejected_requests_total", reason="overloaded") == 1
        assert (await server.model_service.ListModels(pb.ListModelsRequest())).models
        server.model.resume()
        await first


async def test_call_without_deadline_gets_the_default(tiny_model: Path) -> None:
    async with running_server(tiny_model, scheduling__max_batch_segments=1, grpc__default_timeout_s=5) as server:
        server.model.halt()
        decoding = asyncio.ensure_future(refusal(server.translate("A man.")))
        await server.model.halted_step()
        waiting = asyncio.ensure_future(refusal(server.translate("A man.")))
        await server.until_sample(1, "dragoman_queue_segments")

        server.clock.advance(6)
        server.model.resume()

        errors = [await decoding, await waiting]
        assert [error.reason for error in errors] == ["DEADLINE_EXCEEDED"] * 2
        assert "queue" in errors[1].message
        assert server.sample("dragoman_requests_total", method="Translate", status="DEADLINE_EXCEEDED") == 2


async def test_deadline_is_limited_to_the_maximum(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__default_timeout_s=1, grpc__max_timeout_s=5) as server:
        server.model.halt()
        call = asyncio.ensure_future(refusal(server.translate("A man.", timeout_s=1000)))
        await server.model.halted_step()

        server.clock.advance(6)
        server.model.resume()

        assert (await call).reason == "DEADLINE_EXCEEDED"


async def test_expired_deadline_cancels_the_work(server: RunningServer) -> None:
    server.model.halt()
    call = asyncio.ensure_future(refusal(server.translate("A man.", timeout_s=1.0)))
    await server.model.halted_step()

    error = await call

    assert error.code == "DEADLINE_EXCEEDED"
    await server.until_sample(0, "dragoman_requests_in_flight", method="Translate")
    assert server.sample("dragoman_requests_total", method="Translate", status="DEADLINE_EXCEEDED") == 1
    server.model.resume()
    await until(lambda: server.sample("dragoman_segments_total", outcome="cancelled") == 1)


async def test_cancelled_call_cancels_the_work(server: RunningServer) -> None:
    server.model.halt()
    call = server.translate("A man.")
    await server.model.halted_step()

    call.cancel()

    await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")
    assert server.sample("dragoman_segments_total", outcome="cancelled") == 1
    server.model.resume()
    assert (await server.translate("A man.")).translations


async def test_lost_connection_cancels_the_work(server: RunningServer) -> None:
    server.model.halt()
    call = asyncio.ensure_future(refusal(server.translate("A man.")))
    await server.model.halted_step()

    await server.channel.close()

    await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_concurrent_calls_are_all_answered(server: RunningServer) -> None:
    texts = [f"Number {number}." for number in range(40)]

    responses = await asyncio.gather(*map(server.translate, texts))

    alone = await server.translate(*texts)
    assert [response.translations[0] for response in responses] == list(alone.translations)
