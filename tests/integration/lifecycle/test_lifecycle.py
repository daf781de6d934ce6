"""Start, drain and stop as observed by callers, load balancers and probes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError
from dragoman_service.grpc_api.server import SERVICE_NAMES
from tests.integration.running_server import RunningServer, described_service, listening_server, refusal, running_server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REFLECTION_VERSIONS = ("v1", "v1alpha")


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


async def test_health_of_unknown_service_is_not_found(server: RunningServer) -> None:
    error = await refusal(health(server).Check(health_pb2.HealthCheckRequest(service="x")))

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


async def test_metrics_are_exposed(server: RunningServer) -> None:
    await server.translate("A man.")

    status, body = await server.get("/metrics")

    assert status == 200
    assert 'dragoman_requests_total{method="Translate",status="OK"} 1.0' in body
    assert 'dragoman_model_info{device="cpu",model="tiny",precision="fp32",version="1"} 1.0' in body


async def test_drain_under_load_answers_all_admitted_calls(server: RunningServer) -> None:
    server.model.halt()
    admitted = [asyncio.ensure_future(server.translate(f"A {'red ' * number}ball.")) for number in range(20)]
    await server.until_sample(20, "dragoman_requests_in_flight", method="Translate")

    drain = asyncio.ensure_future(server.app.drain())
    await server.until_sample(0, "dragoman_ready")

    # The port is closed, or the call crosses GOAWAY.
    assert (await refusal(server.translate("A man."))).code in {"UNAVAILABLE", "CANCELLED"}
    assert [(await server.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 503]
    assert not drain.done()
    server.model.resume()
    assert await drain
    assert [len(response.translations) for response in await asyncio.gather(*admitted)] == [1] * 20


async def test_unfinished_calls_get_an_error_after_the_drain(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__drain_timeout_s=0) as server:
        server.model.halt()
        left = asyncio.ensure_future(refusal(server.translate("A man.")))
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


async def test_server_can_be_stopped_twice(server: RunningServer) -> None:
    await server.app.stop()
    await server.app.stop()

    with pytest.raises(grpc.aio.AioRpcError):
        await server.translate("A man rides a bicycle.")
