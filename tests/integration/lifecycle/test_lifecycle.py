"""Start, drain and stop as observed by callers, load balancers and probes."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import ConfigError
from dragoman_service.grpc_api.server import SERVICE_NAMES
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    described_service,
    listening_server,
    rejection,
    request,
    running_server,
)
from tests.waiting import wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NUM_WAITING = 90  # below the limit of calls of a connection
REFLECTION_VERSIONS = ("v1", "v1alpha")
HEALTH_CHECKS = (
    '{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": '
    '{"serviceName": "dragoman.v1.TranslationService"}}'
)


@pytest.fixture
async def starting(tiny_model: Path) -> AsyncIterator[RunningServer]:
    """A server that listens without loaded models."""
    async with listening_server(tiny_model) as server:
        yield server


def health(server: RunningServer) -> Any:
    return health_pb2_grpc.HealthStub(server.channel)


async def health_of_all(server: RunningServer) -> set[int]:
    requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", *SERVICE_NAMES)]
    return {(await health(server).Check(request)).status for request in requests}


async def test_server_is_alive_but_not_ready_until_models_are_loaded(starting: RunningServer) -> None:
    assert await health_of_all(starting) == {NOT_SERVING}
    assert [(await starting.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 503]
    assert starting.sample("dragoman_ready") == 0
    assert not (await starting.model_service.ListModels(pb.ListModelsRequest())).models

    await starting.app.load()

    assert await health_of_all(starting) == {SERVING}
    assert [(await starting.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 200]
    assert starting.sample("dragoman_ready") == 1


async def test_watcher_receives_every_change(starting: RunningServer) -> None:
    statuses = aiter(health(starting).Watch(health_pb2.HealthCheckRequest(service="")))

    seen = [(await anext(statuses)).status]
    await starting.app.load()
    seen.append((await anext(statuses)).status)
    await starting.app.drain()
    seen.append((await anext(statuses)).status)

    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


async def test_every_served_service_has_a_state(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__google_translation=True) as server:
        states = (await health(server).List(health_pb2.HealthListRequest())).statuses
        watched = [await health(server).Watch(health_pb2.HealthCheckRequest(service=name)).read() for name in states]

    assert {*SERVICE_NAMES, "", "google.cloud.translation.v3.TranslationService", "grpc.health.v1.Health"} < set(states)
    assert {state.status for state in (*states.values(), *watched)} == {SERVING}


async def test_all_clients_with_health_checks_are_served(server: RunningServer) -> None:
    num_channels = 40
    max_watchers = GrpcSettings().max_peer_watchers
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.service_config", HEALTH_CHECKS), ("grpc.use_local_subchannel_pool", 1)]
        stubs = [
            pb_grpc.ModelServiceStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(server.target, options=options))
            )
            for _ in range(num_channels)
        ]
        for _ in range(2):
            await asyncio.gather(*(stub.ListModels(pb.ListModelsRequest(), timeout=60) for stub in stubs))

        assert server.sample("dragoman_health_watchers") == max_watchers
        assert server.sample("dragoman_limit_rejections_total", limit="max_watchers") == num_channels - max_watchers


async def test_health_of_unknown_service_is_not_found(server: RunningServer) -> None:
    error = await rejection(health(server).Check(health_pb2.HealthCheckRequest(service="x")))

    assert error.code == "NOT_FOUND"


@pytest.mark.parametrize("version", REFLECTION_VERSIONS)
async def test_reflection_describes_all_services(server: RunningServer, version: str) -> None:
    async def reflected(**fields: str) -> Any:
        requests = iter([reflection_pb2.ServerReflectionRequest(**fields)])
        (answer,) = [answer async for answer in server.reflect(version)(requests)]
        return answer

    names = [service.name for service in (await reflected(list_services="")).list_services_response.service]

    reflections = {f"grpc.reflection.{each}.ServerReflection" for each in REFLECTION_VERSIONS}
    assert set(names) == {*SERVICE_NAMES, "grpc.health.v1.Health", *reflections}
    for name in names:
        assert described_service(await reflected(file_containing_symbol=name), name).full_name == name


def num_received() -> int:
    """Return the number of calls that gRPC has received, for all servers of this process."""
    servers = json.loads(cygrpc.channelz_get_servers(0))["server"]
    return sum(int(each["data"].get("callsStarted", 0)) for each in servers)


async def test_drain_answers_calls_that_grpc_has_received(server: RunningServer) -> None:
    num_before = num_received()
    with grpc.insecure_channel(server.target) as channel:
        stub = pb_grpc.TranslationServiceStub(channel)
        calls = [stub.Translate.future(request("A man."), timeout=TEST_TIMEOUT_S) for _ in range(NUM_WAITING)]
        wait_until(lambda: num_received() == num_before + NUM_WAITING)  # blocks the loop that accepts calls

        assert await server.app.drain()

        codes = await asyncio.to_thread(lambda: {call.code() for call in calls})
    assert codes == {grpc.StatusCode.OK}


async def test_unfinished_calls_get_an_error_after_the_drain(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__drain_timeout_s=0) as server:
        server.model.halt()
        left = asyncio.ensure_future(rejection(server.translate("A man.")))
        await server.model.halted_step()

        assert not await server.app.drain()
        stop = asyncio.ensure_future(server.app.stop())

        error = await left
        assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")
        server.model.resume()
        await stop


async def test_missing_models_prevent_startup(tmp_path: Path) -> None:
    async with listening_server(tmp_path) as server:
        with pytest.raises(ConfigError, match=r"models\.directory"):
            await server.app.load()


async def test_unavailable_grpc_port_is_named(server: RunningServer, tiny_model: Path) -> None:
    port = server.port

    with pytest.raises(ConfigError, match=rf"'grpc.port' is '127.0.0.1:{port}'"):
        async with listening_server(tiny_model, grpc__port=port):
            pass


async def test_socket_of_a_running_server_is_not_replaced(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "dragoman.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with (
        running_server(tiny_model, grpc__host=f"unix:{path}") as server,
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        with pytest.raises(ConfigError, match=r"grpc\.host"):
            async with listening_server(tiny_model, grpc__host=f"unix:{path}"):
                pass

        response = await pb_grpc.TranslationServiceStub(channel).Translate(request("A man."))
        assert len(response.translations) == 1
        assert server.port == 0


async def test_server_can_be_stopped_twice(server: RunningServer) -> None:
    await server.app.stop()
    await server.app.stop()

    with pytest.raises(grpc.aio.AioRpcError):
        await server.translate("A man rides a bicycle.")
