"""Deadlines at admission, in the queue and between steps, and disconnected callers."""

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
from tests.integration.cable import Cable
from tests.integration.running_server import RunningServer, refusal, request, running_server, until

WIRE_PRECISION = 0.05
"""gRPC rounds a deadline up to two or three digits."""

STEP_S = 1.0
TEXT = "A man."
OPTIONS = pb.DecodingOptions(max_target_tokens=4)
PATIENT_S = 3000.0
TRANSIT_S = 2.0
"""Allowance for the time until a call arrives, which passes on the real clock and not on the server's."""
NUM_LESSONS = 40
"""Number of sentences after which the server can estimate durations."""


@contextlib.asynccontextmanager
async def experienced_server(models: Path) -> AsyncIterator[RunningServer]:
    """Run a server whose steps take a second of its clock, after many sequential requests."""
    async with running_server(
        models, scheduling__max_batch_segments=1, grpc__default_timeout_s=PATIENT_S, grpc__max_timeout_s=PATIENT_S
    ) as server:
        server.model.step_s = STEP_S
        await translate(server, *[TEXT] * NUM_LESSONS)
        yield server


@pytest.fixture
async def experienced(tiny_model: Path) -> AsyncIterator[RunningServer]:
    async with experienced_server(tiny_model) as server:
        yield server


def translate(server: RunningServer, *texts: str, timeout_s: float | None = None) -> Any:
    """Start a call with four steps per text."""
    return server.translate(*texts, timeout_s=timeout_s, options=OPTIONS)


async def seconds_of_one(server: RunningServer) -> float:
    """Return the duration of one sentence on the clock of the server."""
    began_s = server.clock()
    await translate(server, TEXT)
    return server.clock() - began_s


async def behind_others(server: RunningServer, *, num_waiting: int) -> list["asyncio.Future[Any]"]:
    """Queue calls behind a halted one; return all of them."""
    server.model.halt()
    calls = [asyncio.ensure_future(translate(server, TEXT))]
    await server.model.halted_step()
    calls += [asyncio.ensure_future(translate(server, TEXT)) for _ in range(num_waiting)]
    await server.until_sample(num_waiting, "dragoman_queue_segments")
    return calls


async def test_short_deadline_behind_a_backlog_is_rejected_at_admission(
    experienced: RunningServer,
) -> None:
    one_s = await seconds_of_one(experienced)
    calls = await behind_others(experienced, num_waiting=10)

    error = await refusal(translate(experienced, TEXT, timeout_s=4 * one_s))
    generous = asyncio.ensure_future(translate(experienced, TEXT, timeout_s=40 * one_s))
    await experienced.until_sample(11, "dragoman_queue_segments")
    experienced.model.resume()

    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert "exceeds the deadline" in error.message
    assert 4 * one_s <= error.retry_delay_ms / 1000 <= 12 * one_s
    assert error.trailing["grpc-retry-pushback-ms"] == str(error.retry_delay_ms)
    assert experienced.sample("dragoman_rejected_requests_total", reason="deadline") == 1
    assert (await generous).translations
    assert all([(await call).translations for call in calls])


async def test_retry_after_the_retry_delay_is_admitted(experienced: RunningServer) -> None:
    one_s = await seconds_of_one(experienced)
    calls = await behind_others(experienced, num_waiting=10)
    error = await refusal(translate(experienced, TEXT, timeout_s=4 * one_s))
    began_s = experienced.clock()
    experienced.model.resume()

    await until(lambda: experienced.clock() - began_s >= error.retry_delay_ms / 1000)

    a_turn_s = 2.5 * one_s  # with its headroom: what waits counts whole until its turn begins
    assert (await translate(experienced, TEXT, timeout_s=4 * one_s + a_turn_s + TRANSIT_S)).translations
    await asyncio.gather(*calls)


async def test_unreachable_deadline_is_rejected_at_admission(
    experienced: RunningServer,
) -> None:
    one_s = await seconds_of_one(experienced)

    error = await refusal(translate(experienced, *[TEXT] * 10, timeout_s=4 * one_s))

    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    message = re.fullmatch(
        r"deadline exceeded in stage admission: the answer would take ([\d.]+) s, ([\d.]+) s are allowed", error.message
    )
    assert message is not None
    needed_s, allowed_s = map(float, message.groups())
    assert needed_s > allowed_s
    assert allowed_s == pytest.approx(4 * one_s, rel=WIRE_PRECISION)
    assert experienced.sample("dragoman_deadline_misses_total", stage="admission") == 10


async def test_deadline_during_decoding_frees_the_batch(experienced: RunningServer) -> None:
    one_s = await seconds_of_one(experienced)
    experienced.model.halt()
    call = asyncio.ensure_future(refusal(translate(experienced, TEXT, timeout_s=5 * one_s + TRANSIT_S)))
    await experienced.model.halted_step()

    experienced.clock.advance(6 * one_s + TRANSIT_S)
    experienced.model.resume()

    assert "decode" in (await call).message
    await experienced.until_sample(0, "dragoman_batch_live_rows")
    assert experienced.sample("dragoman_deadline_misses_total", stage="decode") == 1


async def test_new_server_admits_short_deadlines(tiny_model: Path) -> None:
    async with running_server(tiny_model, scheduling__max_batch_segments=1) as server:
        await behind_others(server, num_waiting=10)

        hurried = asyncio.ensure_future(translate(server, TEXT, timeout_s=20))
        await server.until_sample(11, "dragoman_queue_segments")
        server.model.resume()

        assert (await hurried).translations


async def test_broken_connection_frees_queue_and_batch(tiny_model: Path) -> None:
    async with running_server(tiny_model, scheduling__max_batch_segments=1) as server, Cable(server.port) as cable:
        stub = pb_grpc.TranslationServiceStub(cable.channel)
        server.model.halt()
        calls = [asyncio.ensure_future(stub.Translate(request(TEXT, options=OPTIONS)))]
        await server.model.halted_step()
        calls.append(asyncio.ensure_future(stub.Translate(request(TEXT, options=OPTIONS))))
        await server.until_sample(1, "dragoman_queue_segments")

        cable.cut()

        await server.until_sample(1, "dragoman_cancelled_segments_total", stage="decode")
        await server.until_sample(1, "dragoman_cancelled_segments_total", stage="queue")
        await server.until_sample(0, "dragoman_queue_segments")
        server.model.resume()
        await server.until_sample(0, "dragoman_batch_live_segments")
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        assert (await server.translate(TEXT)).translations
