"""A rollout behind a load balancer of connections: no call fails.

New connections go to the second server, and those of the first server stay there until it drains.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from dragoman.client.channel import ChannelSettings, channel_options
from dragoman.client.clients import AsyncTranslationClient, TranslationClient
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.proxy import Proxy
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, request, running_server
from tests.waiting import until

NUM_CALLS = 5  # of each client after the beginning of the rollout
NUM_SENTENCES = 20
GOAWAY_S = 0.1
SENTENCE = "A man."
HEALTH_CHECKS = (
    '{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": '
    '{"serviceName": "dragoman.v1.TranslationService"}}'
)


@dataclass(frozen=True)
class Rollout:
    """Two servers behind proxies."""

    old: RunningServer
    new: RunningServer
    grpc_proxy: Proxy
    http_proxy: Proxy

    async def start(self) -> "asyncio.Future[bool]":
        """Send new connections to the new server, and begin the drain of the old one."""
        self.grpc_proxy.forward_to(self.new.port)
        self.http_proxy.forward_to(self.new.ports.http_port)
        drain = asyncio.ensure_future(self.old.app.drain())
        await until(self._is_old_port_closed)
        await asyncio.sleep(GOAWAY_S)  # gRPC cancels calls that cross the GOAWAY frame (grpc/grpc#41785)
        return drain

    def _is_old_port_closed(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.old.port)) != 0


@pytest.fixture
async def rollout(tiny_model: Path) -> AsyncIterator[Rollout]:
    async with (
        running_server(tiny_model) as old,
        running_server(tiny_model) as new,
        Proxy(old.port) as grpc_proxy,
        Proxy(old.ports.http_port) as http_proxy,
    ):
        yield Rollout(old, new, grpc_proxy, http_proxy)


async def document(channel: grpc.aio.Channel) -> list[pb.TranslatedSentence]:
    call = pb_grpc.TranslationServiceStub(channel).TranslateDocument(
        pb.TranslateDocumentRequest(text=f"{SENTENCE} " * NUM_SENTENCES, source_language="en", target_language="de")
    )
    return [sentence async for sentence in call]


@contextlib.asynccontextmanager
async def plain_caller(proxy: Proxy, config: str | None = None) -> AsyncIterator[Any]:
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
    options += [("grpc.service_config", config)] if config else []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}", options=options) as channel:
        stub = pb_grpc.TranslationServiceStub(channel)
        yield lambda: stub.Translate(request(SENTENCE), timeout=TEST_TIMEOUT_S)


@contextlib.asynccontextmanager
async def async_client(proxy: Proxy) -> AsyncIterator[Any]:
    async with AsyncTranslationClient(f"127.0.0.1:{proxy.port}") as client:
        yield lambda: client.translate([SENTENCE], source_language="en", target_language="de")


@contextlib.asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[Any]:
    with TranslationClient(f"127.0.0.1:{proxy.port}") as blocking:
        yield lambda: asyncio.to_thread(blocking.translate, [SENTENCE], source_language="en", target_language="de")


async def test_no_call_over_grpc_fails(rollout: Rollout) -> None:
    documented = str(dict(channel_options(ChannelSettings()))["grpc.service_config"])
    proxy = rollout.grpc_proxy
    clients = (
        plain_caller(proxy),
        plain_caller(proxy, documented),
        plain_caller(proxy, HEALTH_CHECKS),
        async_client(proxy),
        client(proxy),
    )
    async with contextlib.AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(caller) for caller in clients]
        await asyncio.gather(*(call() for call in callers))
        rollout.old.model.halt()
        translating = asyncio.ensure_future(document(proxy.channel))
        await rollout.old.model.halted_step()

        drain = await rollout.start()
        for _ in range(NUM_CALLS):
            await asyncio.gather(*(call() for call in callers))

        assert not drain.done()
        rollout.old.model.resume()
        assert len(await translating) == NUM_SENTENCES
        assert await drain


async def test_no_call_over_http_fails(rollout: Rollout) -> None:
    languages = {"sourceLanguage": "en", "targetLanguage": "de"}
    url = f"http://127.0.0.1:{rollout.http_proxy.port}"
    async with httpx.AsyncClient(base_url=url, timeout=TEST_TIMEOUT_S, trust_env=False) as http:

        async def translate() -> httpx.Response:
            return await http.post("/v1/translate", json={"texts": [SENTENCE], **languages})

        responses = list(await asyncio.gather(translate(), translate()))  # on two connections
        rollout.old.model.halt()
        document = asyncio.ensure_future(http.post("/v1/translate/document", json={"text": SENTENCE, **languages}))
        await rollout.old.model.halted_step()

        drain = await rollout.start()
        last_at_old = asyncio.ensure_future(translate())
        await rollout.old.until_sample(1, "dragoman_requests_in_flight", method="Translate")
        responses += [await translate() for _ in range(NUM_CALLS)]

        assert not drain.done()
        rollout.old.model.resume()
        last = [await document, await last_at_old]
        assert await drain

    assert {response.status_code for response in (*responses, *last)} == {200}
    assert [response.headers.get("connection") for response in last] == ["close", "close"]
