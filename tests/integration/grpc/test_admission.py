"""Overload, fairness between callers and deadlines, at admission, in the queue and between steps."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.proxy import Proxy
from tests.integration.running_server import Rejection, RunningServer, rejection, request, running_server

WIRE_PRECISION = 0.05  # gRPC rounds a deadline up to two or three digits
TEXT = "A man."
ONE_STEP = pb.DecodingOptions(max_target_tokens=1)
OTHER_HOST = "127.0.0.2"
NUM_QUEUED = 30
ONE_BY_ONE = {"scheduling__max_batch_segments": 1}
SMALL_QUEUE = {**ONE_BY_ONE, "scheduling__max_queue_segments": 4, "limits__max_request_sentences": 2}

STEP_S = 1.0  # on the clock of the server
NUM_LESSONS = 40  # sentences after which the server can estimate durations


@contextlib.asynccontextmanager
async def other_host(server: RunningServer) -> AsyncIterator[Any]:
    """Yield a stub with an address of its own."""
    async with Proxy(server.port, from_address=OTHER_HOST) as proxy:
        yield pb_grpc.TranslationServiceStub(proxy.channel)


async def halt_with_backlog(server: RunningServer, *texts: str) -> list["asyncio.Future[Any]"]:
    """Halt the model in a request and queue the texts of another one; return both calls."""
    server.model.halt()
    running = asyncio.ensure_future(server.translate(TEXT, options=ONE_STEP))
    await server.model.halted_step()
    queued = asyncio.ensure_future(server.translate(*texts, options=ONE_STEP))
    await server.until_sample(len(texts), "dragoman_queue_segments")
    return [running, queued]


async def complete(server: RunningServer, *calls: "asyncio.Future[Any]") -> None:
    """Resume the model and await the calls."""
    server.model.resume()
    assert all([(await call).translations for call in calls])


@pytest.mark.parametrize("priority", [pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK])
async def test_small_request_does_not_wait_for_many_segments_of_another_caller(
    tiny_model: Path, priority: pb.Priority
) -> None:
    async with running_server(tiny_model, **ONE_BY_ONE) as server, other_host(server) as other:
        calls = await halt_with_backlog(server, *[TEXT] * NUM_QUEUED)
        calls.append(asyncio.ensure_future(server.translate(*[TEXT] * NUM_QUEUED, options=ONE_STEP, priority=priority)))
        await server.until_sample(2 * NUM_QUEUED, "dragoman_queue_segments")
        small = asyncio.ensure_future(other.Translate(request(TEXT, options=ONE_STEP)))
        await server.until_sample(2 * NUM_QUEUED + 1, "dragoman_queue_segments")

        server.model.resume()

        await small
        assert server.sample("dragoman_queue_segments") > NUM_QUEUED
        await complete(server, *calls)


async def test_one_caller_cannot_fill_the_queue(tiny_model: Path) -> None:
    async with running_server(tiny_model, **SMALL_QUEUE) as server, other_host(server) as other:
        calls = await halt_with_backlog(server, TEXT, TEXT)

        error = await rejection(server.translate(TEXT, options=ONE_STEP))
        calls.append(asyncio.ensure_future(other.Translate(request(TEXT, options=ONE_STEP))))
        await server.until_sample(3, "dragoman_queue_segments")

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert "limit of 2 segments of this caller" in error.message
        assert error.retry_delay_ms > 0
        assert error.trailing["grpc-retry-pushback-ms"] == str(error.retry_delay_ms)
        assert server.sample("dragoman_rejected_requests_total", reason="overloaded") == 1
        await complete(server, *calls)


async def test_broken_connection_frees_queue_and_batch(tiny_model: Path) -> None:
    async with running_server(tiny_model, **ONE_BY_ONE) as server, Proxy(server.port) as proxy:
        stub = pb_grpc.TranslationServiceStub(proxy.channel)
        server.model.halt()
        calls = [asyncio.ensure_future(stub.Translate(request(TEXT)))]
        await server.model.halted_step()
        calls.append(asyncio.ensure_future(stub.Translate(request(TEXT))))
        await server.until_sample(1, "dragoman_queue_segments")

        proxy.reset()

        await server.until_sample(1, "dragoman_cancelled_segments_total", stage="decode")
        await server.until_sample(1, "dragoman_cancelled_segments_total", stage="queue")
        await server.until_sample(0, "dragoman_queue_segments")
        server.model.resume()
        await server.until_sample(0, "dragoman_batch_live_segments")
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        assert (await server.translate(TEXT)).translations


@pytest.mark.parametrize("timeout_s", [None, 1000])
async def test_deadline_is_the_default_or_at_most_the_maximum(tiny_model: Path, timeout_s: float | None) -> None:
    limits = {"grpc__default_timeout_s": 5, "grpc__max_timeout_s": 5 if timeout_s else 3000}
    async with running_server(tiny_model, **ONE_BY_ONE, **limits) as server:
        server.model.halt()
        decoding = asyncio.ensure_future(rejection(server.translate(TEXT, timeout_s=timeout_s)))
        await server.model.halted_step()
        waiting = asyncio.ensure_future(rejection(server.translate(TEXT, timeout_s=timeout_s)))
        await server.until_sample(1, "dragoman_queue_segments")

        server.clock.advance(6)
        server.model.resume()

        errors = [await decoding, await waiting]
        assert [error.reason for error in errors] == ["DEADLINE_EXCEEDED"] * 2
        assert "queue" in errors[1].message
        assert server.sample("dragoman_requests_total", method="Translate", status="DEADLINE_EXCEEDED") == 2


class ExperiencedServer:
    """A server that decodes one segment at a time, in `sentence_s` of its own clock, and can estimate durations."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.sentence_s = 0.0

    def translate(self, *texts: str, timeout_s: float | None = None) -> Any:
        """Start a call with four steps per text."""
        return self.server.translate(*texts, timeout_s=timeout_s, options=pb.DecodingOptions(max_target_tokens=4))

    async def learn(self) -> None:
        self.server.model.step_s = STEP_S
        await self.translate(*[TEXT] * NUM_LESSONS)
        began_s = self.server.clock()
        await self.translate(TEXT)
        self.sentence_s = self.server.clock() - began_s

    async def backlog(self) -> list["asyncio.Future[Any]"]:
        """Queue ten calls behind a halted one; return all of them."""
        self.server.model.halt()
        calls = [asyncio.ensure_future(self.translate(TEXT))]
        await self.server.model.halted_step()
        calls += [asyncio.ensure_future(self.translate(TEXT)) for _ in range(10)]
        await self.server.until_sample(10, "dragoman_queue_segments")
        return calls

    async def rejected(self, *texts: str) -> Rejection:
        """Return the rejection of a call whose deadline is the duration of four sentences."""
        return await rejection(self.translate(*texts, timeout_s=4 * self.sentence_s))


@pytest.fixture
async def experienced(tiny_model: Path) -> AsyncIterator[ExperiencedServer]:
    patient = {"grpc__default_timeout_s": 3000, "grpc__max_timeout_s": 3000}
    async with running_server(tiny_model, **ONE_BY_ONE, **patient) as server:
        experienced = ExperiencedServer(server)
        await experienced.learn()
        yield experienced


async def test_short_deadline_behind_a_backlog_is_rejected_at_admission(experienced: ExperiencedServer) -> None:
    server, sentence_s = experienced.server, experienced.sentence_s
    calls = await experienced.backlog()

    error = await experienced.rejected(TEXT)
    calls.append(asyncio.ensure_future(experienced.translate(TEXT, timeout_s=40 * sentence_s)))
    await server.until_sample(11, "dragoman_queue_segments")

    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert "exceeds the deadline" in error.message
    assert 4 * sentence_s <= error.retry_delay_ms / 1000 <= 12 * sentence_s
    assert error.trailing["grpc-retry-pushback-ms"] == str(error.retry_delay_ms)
    assert server.sample("dragoman_rejected_requests_total", reason="deadline") == 1
    await complete(server, *calls)


async def test_unreachable_deadline_is_rejected_at_admission(experienced: ExperiencedServer) -> None:
    error = await experienced.rejected(*[TEXT] * 10)

    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    message = re.fullmatch(
        r"deadline exceeded in stage admission: the answer would take ([\d.]+) s, ([\d.]+) s are allowed", error.message
    )
    assert message is not None
    needed_s, allowed_s = map(float, message.groups())
    assert needed_s > allowed_s
    assert allowed_s == pytest.approx(4 * experienced.sentence_s, rel=WIRE_PRECISION)
    assert experienced.server.sample("dragoman_deadline_misses_total", stage="admission") == 10
