"""Each limit of a connection, reached over a real socket."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from hyperframe.frame import SettingsFrame

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.calls.settings import GrpcSettings
from loadtests.hostile.http2 import HELLO, RawConnection
from tests.certificates import OWN_CONNECTION
from tests.integration.proxy import Proxy
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, rejection, request, running_server


def channel(server: RunningServer, *options: tuple[str, Any]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=(*OWN_CONNECTION, *options))


async def translate(channel: grpc.aio.Channel, **call: Any) -> Any:
    return await pb_grpc.TranslationServiceStub(channel).Translate(request("A man."), timeout=TEST_TIMEOUT_S, **call)


async def until_state_is_left(channel: grpc.aio.Channel, state: grpc.ChannelConnectivity) -> None:
    async with asyncio.timeout(TEST_TIMEOUT_S):
        await channel.wait_for_state_change(state)


async def test_large_metadata_is_rejected(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_metadata_bytes=2048) as server, channel(server) as connection:
        await translate(connection, metadata=(("x-note", "a" * 1000),))

        error = await rejection(translate(connection, metadata=(("x-note", "a" * 2000),)))

        assert error.code == "RESOURCE_EXHAUSTED"
        assert "metadata size exceeds hard limit" in error.message
        await translate(connection)


async def test_large_message_is_rejected_and_the_connection_continues(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_message_bytes=1024) as server, channel(server) as connection:
        stub = pb_grpc.TranslationServiceStub(connection)

        error = await rejection(stub.Translate(request("a" * 2000)))

        assert error.code == "RESOURCE_EXHAUSTED"
        assert "1024" in error.message
        await translate(connection)


async def test_excess_calls_of_a_connection_wait_in_the_client(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_connection_streams=2) as server:
        server.model.halt()
        async with channel(server) as full, channel(server) as other:
            await pb_grpc.ModelServiceStub(full).ListModels(pb.ListModelsRequest())  # has learned the limit by now
            admitted = [asyncio.ensure_future(translate(full)) for _ in range(2)]
            await server.until_sample(2, "dragoman_requests_in_flight", method="Translate")

            error = await rejection(pb_grpc.ModelServiceStub(full).ListModels(pb.ListModelsRequest(), timeout=0.5))
            await pb_grpc.ModelServiceStub(other).ListModels(pb.ListModelsRequest(), timeout=TEST_TIMEOUT_S)

            assert error.code == "DEADLINE_EXCEEDED"
            assert server.sample("dragoman_requests_total", method="ListModels", status="OK") == 2
            server.model.resume()
            await asyncio.gather(*admitted)


async def test_excess_connections_are_closed(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_connections=2) as server:
        async with channel(server) as first:
            await translate(first)
            async with channel(server) as second:
                await translate(second)

                async with channel(server) as third:
                    error = await rejection(translate(third))

                assert error.code == "UNAVAILABLE"
                await translate(first)

        async with channel(server) as fourth:
            await translate(fourth, wait_for_ready=True)


async def test_idle_connection_is_closed(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_connection_idle_s=0.5) as server, channel(server) as connection:
        await translate(connection)

        await until_state_is_left(connection, grpc.ChannelConnectivity.READY)

        await translate(connection)  # opens another


async def test_old_connection_is_closed_after_its_calls(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_connection_age_s=0.5) as server, channel(server) as connection:
        server.model.halt()
        call = asyncio.ensure_future(translate(connection))
        await server.until_sample(1, "dragoman_requests_in_flight", method="Translate")

        await until_state_is_left(connection, grpc.ChannelConnectivity.READY)
        server.model.resume()

        assert len((await call).translations) == 1


async def test_frequent_pings_disconnect_the_client(tiny_model: Path) -> None:
    pings = (
        ("grpc.keepalive_time_ms", 50),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    )
    async with running_server(tiny_model, grpc__min_ping_interval_s=60) as server, channel(server, *pings) as nuisance:
        server.model.halt()

        error = await rejection(translate(nuisance))

        assert error.code == "UNAVAILABLE"
        assert "too_many_pings" in error.message.lower() or "too many pings" in error.message.lower()
        server.model.resume()


async def test_allowed_pings_keep_an_idle_connection(tiny_model: Path) -> None:
    pings = (
        ("grpc.keepalive_time_ms", 75),  # less than 10 s / 100, as delays of the network vary
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    )
    interval_s = GrpcSettings().min_ping_interval_s / 100  # clients of Go and Python ping every 10 s at most
    limits = {"grpc__min_ping_interval_s": interval_s}
    async with running_server(tiny_model, **limits) as server, channel(server, *pings) as connection:
        await translate(connection)

        leaving = asyncio.ensure_future(until_state_is_left(connection, grpc.ChannelConnectivity.READY))
        await asyncio.wait((leaving,), timeout=0.8)  # ten pings; there is nothing to wait for

        assert not leaving.done()
        leaving.cancel()


async def test_calls_of_a_vanished_client_are_cancelled(tiny_model: Path) -> None:
    keepalive = {"grpc__keepalive_interval_s": 0.2, "grpc__keepalive_timeout_s": 0.2}
    async with running_server(tiny_model, **keepalive) as server, Proxy(server.port) as proxy:
        server.model.halt()
        call = asyncio.ensure_future(rejection(translate(proxy.channel)))
        await server.model.halted_step()

        proxy.vanish()

        await server.until_sample(1, "dragoman_requests_total", method="Translate", status="CANCELLED")
        server.model.resume()
        call.cancel()


@pytest.mark.parametrize(
    ("setting", "hello"), [("handshake_timeout_s", b""), ("settings_timeout_s", HELLO)], ids=["silent", "no ACK"]
)
async def test_client_without_handshake_is_disconnected(tiny_model: Path, setting: str, hello: bytes) -> None:
    async with running_server(tiny_model, **{f"grpc__{setting}": 0.2}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(hello)

        async with asyncio.timeout(TEST_TIMEOUT_S):
            await reader.read(-1)  # up to the end of the connection

        writer.close()
        assert (await server.translate("A man.")).translations


async def test_client_may_acknowledge_the_settings_late(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        with contextlib.closing(RawConnection(f"127.0.0.1:{server.port}")) as connection:
            await asyncio.to_thread(connection.send, HELLO)
            await asyncio.sleep(0.5 * GrpcSettings().settings_timeout_s)  # a slow network
            await asyncio.to_thread(connection.send, SettingsFrame(flags=["ACK"]).serialize())

            is_closed = await asyncio.to_thread(connection.wait_until_closed, GrpcSettings().settings_timeout_s)

        assert not is_closed


async def test_server_listens_on_a_unix_socket(tiny_model: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'dragoman.sock'}"
    async with running_server(tiny_model, grpc__host=address), grpc.aio.insecure_channel(address) as connection:
        assert len((await translate(connection)).translations) == 1
