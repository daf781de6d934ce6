"""Hostile HTTP/2 clients do not prevent others from being served."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.exceptions import H2Error
from hyperframe.frame import HeadersFrame

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.security.api_keys import new_key
from loadtests.generator.metrics import scrape
from loadtests.hostile.http2 import RawConnection, call_headers, flood_with_resets, grpc_message
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    bearer,
    listening_server,
    rejection,
    request,
    running_server,
    write_callers,
)

pytestmark = pytest.mark.slow

WATCH = "/grpc.health.v1.Health/Watch"
TRANSLATE = "/dragoman.v1.TranslationService/Translate"
TRANSLATE_STREAM = "/dragoman.v1.TranslationService/TranslateStream"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SOON_S = 10.0  # far below the timeouts of the server, far above any time here

MAX_GROWTH_BYTES = 64 * 1024 * 1024
FAIR_KEY, GREEDY_KEY = new_key(), new_key()
FAIR, GREEDY = bearer(FAIR_KEY), bearer(GREEDY_KEY)


@pytest.fixture
def callers_file(tmp_path: Path) -> Path:
    return write_callers(tmp_path, {"fair": FAIR_KEY, "greedy": GREEDY_KEY})


@contextlib.asynccontextmanager
async def raw_connection(server: RunningServer, *, window_bytes: int = 65_535) -> AsyncIterator[RawConnection]:
    """Open a connection and exchange settings."""
    connection = await asyncio.to_thread(RawConnection, f"127.0.0.1:{server.port}", window_bytes=window_bytes)
    try:
        await asyncio.to_thread(connection.begin)
        yield connection
    finally:
        connection.close()


def watch(server: RunningServer, name: str = "") -> Any:
    return health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service=name))


async def state(watcher: Any) -> int:
    async with asyncio.timeout(SOON_S):
        status: int = (await watcher.read()).status
    return status


async def test_silent_watcher_delays_neither_start_nor_drain(tiny_model: Path) -> None:
    async with listening_server(tiny_model) as server, raw_connection(server, window_bytes=0) as silent:
        for name in ("", "dragoman.v1.TranslationService"):
            named = health_pb2.HealthCheckRequest(service=name).SerializeToString()
            silent.call(WATCH, grpc_message(named))
        normal = watch(server)
        assert await state(normal) == NOT_SERVING  # begun after the silent watchers
        health = health_pb2_grpc.HealthStub(server.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=SOON_S)).status == NOT_SERVING

        async with asyncio.timeout(SOON_S):
            await server.app.load()
        assert await state(normal) == SERVING

        async with asyncio.timeout(SOON_S):
            assert await server.app.drain()
        assert await state(normal) == NOT_SERVING
        async with asyncio.timeout(SOON_S):
            await server.app.stop()


async def test_watchers_are_limited_per_host_and_in_total(tiny_model: Path) -> None:
    limits = {"grpc__max_watchers": 3, "grpc__max_peer_watchers": 2}
    async with running_server(tiny_model, **limits) as server:
        first, second = watch(server), watch(server)
        assert await state(first) == await state(second) == SERVING

        error = await rejection(watch(server).read())

        assert error.code == "UNIMPLEMENTED"
        assert server.sample("dragoman_limit_rejections_total", limit="max_watchers") == 1
        assert server.sample("dragoman_health_watchers") == 2
        second.cancel()
        await server.until_sample(1, "dragoman_health_watchers")
        assert await state(watch(server)) == SERVING
    async with running_server(tiny_model, grpc__max_watchers=1) as server:
        assert await state(watch(server)) == SERVING
        assert (await rejection(watch(server).read())).code == "UNIMPLEMENTED"


async def test_missing_message_ends_the_call(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, grpc__message_timeout_s=0.2) as server,
        raw_connection(server) as slow,
    ):
        for path in (TRANSLATE, "/dragoman.v1.ModelService/ListModels", "/grpc.health.v1.Health/Check", WATCH):
            slow.call(path, b"\0\0\0", ends=False)

        await server.until_sample(4, "dragoman_limit_rejections_total", limit="message_timeout_s")

        await server.until_sample(0, "dragoman_unread_calls")
        assert server.sample("dragoman_requests_total", method="Translate", status="DEADLINE_EXCEEDED") == 1
        assert (await server.translate("A man.")).translations


async def test_calls_without_a_message_are_limited_per_caller(tiny_model: Path, callers_file: Path) -> None:
    limits = {"grpc__max_concurrent_requests": 8, "access__callers_file": callers_file}
    async with running_server(tiny_model, **limits) as server, raw_connection(server) as greedy:
        for _ in range(20):
            greedy.call(TRANSLATE, b"", ends=False, extra=GREEDY)

        await server.until_sample(16, "dragoman_limit_rejections_total", limit="max_concurrent_requests")

        assert server.sample("dragoman_unread_calls") == 4
        assert server.sample("dragoman_requests_total", method="Translate", status="RESOURCE_EXHAUSTED") == 16
        assert len((await server.translate("A man.", metadata=FAIR)).translations) == 1


async def test_received_bytes_are_limited_per_caller(tiny_model: Path, callers_file: Path) -> None:
    limits = {
        "grpc__max_message_bytes": 10_000,
        "grpc__max_received_bytes": 40_000,  # half of it for admitted calls, half of that for one caller
        "access__callers_file": callers_file,
    }
    async with running_server(tiny_model, **limits) as server:
        server.model.halt()

        def translate(metadata: Any) -> Any:
            return asyncio.ensure_future(server.translate("A." + " " * 6000, metadata=metadata))

        admitted = [translate(GREEDY)]
        await server.until_sample(1, "dragoman_requests_in_flight", method="Translate")
        error = await rejection(translate(GREEDY))
        admitted.append(translate(FAIR))
        await server.until_sample(2, "dragoman_requests_in_flight", method="Translate")

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
        assert error.retry_delay_ms > 0
        assert server.sample("dragoman_limit_rejections_total", limit="max_received_bytes") == 1
        assert server.sample("dragoman_received_bytes") > 12_000
        server.model.resume()
        await asyncio.gather(*admitted)
        await server.until_sample(0, "dragoman_received_bytes")


@pytest.mark.parametrize("is_health", [True, False])
async def test_only_translation_accepts_large_messages(server: RunningServer, *, is_health: bool) -> None:
    large = "a" * 100_000
    call = (
        health_pb2_grpc.HealthStub(server.channel).Check(health_pb2.HealthCheckRequest(service=large))
        if is_health
        else server.model_service.GetModel(pb.GetModelRequest(model=large))
    )

    error = await rejection(call)

    assert (error.code, error.fields) == ("INVALID_ARGUMENT", ["request"])
    assert server.sample("dragoman_limit_rejections_total", limit="max_control_message_bytes") == 1


async def test_idle_streams_are_limited_per_caller_and_end(tiny_model: Path, callers_file: Path) -> None:
    limits = {"grpc__max_streams": 6, "grpc__max_concurrent_requests": 6, "access__callers_file": callers_file}
    async with running_server(tiny_model, **limits, grpc__stream_idle_timeout_s=2.0) as server:

        def stream(metadata: Any) -> Any:
            return server.translation.TranslateStream(metadata=metadata)

        idle = [stream(GREEDY) for _ in range(3)]
        await server.until_sample(3, "dragoman_open_streams")

        error = await rejection(stream(GREEDY).read())
        fair = stream(FAIR)
        await fair.write(request("A man.", request_id="r"))
        answer = await fair.read()

        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
        assert (answer.request_id, len(answer.translations)) == ("r", 1)
        assert len((await server.translate("A man.", metadata=FAIR)).translations) == 1
        ended = [await rejection(call.read()) for call in idle]
        assert {error.code for error in ended} == {"DEADLINE_EXCEEDED"}
        assert server.sample("dragoman_limit_rejections_total", limit="max_streams") == 1
        await server.until_sample(4, "dragoman_limit_rejections_total", limit="stream_idle_timeout_s")
        assert await stream(GREEDY).write(request("A man.", request_id="r")) is None


async def test_stream_with_a_pending_answer_is_not_idle(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__stream_idle_timeout_s=0.2) as server:
        server.model.halt()
        stream = server.translation.TranslateStream()
        await stream.write(request("A man.", request_id="r"))
        await server.model.halted_step()

        await asyncio.wait((asyncio.ensure_future(stream.read()),), timeout=1.0)  # longer than the idle timeout

        assert server.sample("dragoman_open_streams") == 1
        server.model.resume()


async def test_stream_with_unread_answers_ends(tiny_model: Path) -> None:
    limits = {"grpc__stream_idle_timeout_s": 0.5, "grpc__max_concurrent_requests": 4}
    async with running_server(tiny_model, **limits) as server, raw_connection(server, window_bytes=0) as silent:
        messages = b"".join(
            grpc_message(request("A man.", request_id=f"r{number}").SerializeToString()) for number in range(3)
        )
        silent.call(TRANSLATE_STREAM, messages, ends=False)

        await server.until_sample(1, "dragoman_limit_rejections_total", limit="stream_idle_timeout_s")

        await server.until_sample(0, "dragoman_open_streams")
        assert (await server.translate("A man.")).translations


class Guarded:
    """A server process with two callers, and its memory."""

    def __init__(self, server: ServerProcess) -> None:
        self.target, self._server = server.target, server
        self._process = psutil.Process(server.pid)
        self.translate()
        self._begin_bytes = self._process.memory_info().rss

    def growth_bytes(self) -> int:
        """Return the growth of its memory since the first call."""
        return self._process.memory_info().rss - self._begin_bytes

    def translate(self) -> float:
        """Translate on a new connection without retries; return the duration."""
        began_s = time.monotonic()
        options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(self.target, options=options) as channel:
            pb_grpc.TranslationServiceStub(channel).Translate(request("A man."), timeout=TEST_TIMEOUT_S, metadata=FAIR)
        return time.monotonic() - began_s

    def sample(self, name: str) -> float:
        """Return a metric by name with labels; 0 if it does not exist."""
        return scrape(self._server.metrics_url).get(name, 0.0)


@pytest.fixture(scope="module")
def guarded_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("guarded")
    callers = write_callers(directory, {"fair": FAIR_KEY, "greedy": GREEDY_KEY})
    settings = {"DRAGOMAN_ACCESS__CALLERS_FILE": str(callers), "DRAGOMAN_MODELS__DIRECTORY": str(tiny_model)}
    with ServerProcess(log=directory / "server.log", environment=settings) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def guarded(guarded_server: ServerProcess) -> Guarded:
    return Guarded(guarded_server)


def largest_growth(server: Guarded, path: str, content: bytes, *, num_connections: int, num_calls: int) -> int:
    """Make endless calls and send as much as the server accepts; return the growth of its memory."""
    with contextlib.ExitStack() as stack:
        rest: dict[tuple[RawConnection, int], bytearray] = {}
        for _ in range(num_connections):
            connection = stack.enter_context(contextlib.closing(RawConnection(server.target)))
            connection.begin()
            for _ in range(num_calls):
                stream = connection.call(path, b"", ends=False)
                rest[connection, stream] = bytearray(content)
        most, until_s = 0, time.monotonic() + 2.0
        while rest and time.monotonic() < until_s:
            for (connection, stream), left in list(rest.items()):
                try:
                    num_bytes = min(connection.local_flow_control_window(stream), len(left), 16_384)
                    if num_bytes > 0:
                        connection.send_data(stream, bytes(left[:num_bytes]))
                except H2Error:  # ended by the server
                    num_bytes = len(left)
                del left[:num_bytes]
                if not left:
                    del rest[connection, stream]
            for connection in {connection for connection, _ in rest}:
                connection.flush()
                list(connection.events(0.001))
                connection.flush()
            most = max(most, server.growth_bytes())
        assert server.translate() < SOON_S
        return max(most, server.growth_bytes())


LARGE_BYTES = 4 * 1024 * 1024 - 100


@pytest.mark.parametrize("path", [TRANSLATE, TRANSLATE_STREAM, WATCH])
def test_unfinished_messages_without_a_key_are_not_buffered(guarded: Guarded, path: str) -> None:
    unfinished = grpc_message(bytes(LARGE_BYTES))[:-1]
    assert largest_growth(guarded, path, unfinished, num_connections=2, num_calls=60) < MAX_GROWTH_BYTES


def test_long_service_names_are_not_buffered(guarded: Guarded) -> None:
    named = grpc_message(health_pb2.HealthCheckRequest(service="a" * LARGE_BYTES).SerializeToString())
    assert largest_growth(guarded, WATCH, named, num_connections=60, num_calls=1) < MAX_GROWTH_BYTES


def test_calls_of_headers_only_are_not_buffered(guarded: Guarded) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(contextlib.closing(RawConnection(guarded.target)))
            connection.begin()
            encoder = connection.encoder
            for stream in range(1, 4000, 2):
                block = encoder.encode(call_headers(TRANSLATE))
                connection.send(HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize())
        until_s = time.monotonic() + SOON_S
        while guarded.sample("dragoman_unread_calls") and time.monotonic() < until_s:
            pass

        assert guarded.growth_bytes() < MAX_GROWTH_BYTES
        assert guarded.translate() < SOON_S


def test_flood_of_resets_fails_no_other_call(guarded: Guarded) -> None:
    def num_seen() -> float:
        names = ('dragoman_requests_total{method="Translate",status="UNAUTHENTICATED"}', "dragoman_dropped_calls_total")
        return sum(map(guarded.sample, names))

    async def flood_and_translate() -> tuple[int, list[float]]:
        flood = asyncio.create_task(
            asyncio.to_thread(flood_with_resets, guarded.target, TRANSLATE, num_connections=8, seconds=1.5)
        )
        durations_s = []
        while not flood.done():
            durations_s.append(await asyncio.to_thread(guarded.translate))
        return await flood, durations_s

    num_before = num_seen()
    num_resets, durations_s = asyncio.run(flood_and_translate())

    assert num_resets > 200  # ten times as many on an idle machine
    assert durations_s
    assert guarded.translate() < SOON_S
    until_s = time.monotonic() + SOON_S
    while guarded.sample("dragoman_unread_calls"):
        assert time.monotonic() < until_s
    assert 0 < num_seen() - num_before <= num_resets
