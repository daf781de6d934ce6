"""The client with a real server; unit tests use a scripted one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.client import AsyncTranslationClient, TranslationClient, UnavailableError
from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.request import DecodingOptions
from tests.integration.proxy import Proxy
from tests.integration.running_server import RunningServer, running_server
from tests.unit.proto.scripted_server import EN_DE

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncTranslationClient]:
    async with AsyncTranslationClient(server.target, channel=ONE_ATTEMPT) as client:
        yield client


async def test_both_clients_return_the_same_translations(server: RunningServer, client: AsyncTranslationClient) -> None:
    texts = ["A man.", "A dog."]
    options = DecodingOptions(return_alignment=True)

    def translate() -> list[str]:
        with TranslationClient(server.target) as blocking:
            return [translation.text for translation in blocking.translate(texts, **EN_DE)]

    result = await client.translate(texts, request_id="r-1", options=options, **EN_DE)
    sentences = [sentence.text async for sentence in client.translate_document("A man. A dog.", **EN_DE)]

    assert await asyncio.to_thread(translate) == [translation.text for translation in result]
    assert (result.model_name, result.model_version, result.request_id) == ("tiny", "1", "r-1")
    assert all(translation.hypotheses[0].alignment[0].target.start == 0 for translation in result)
    assert [sentence.strip() for sentence in sentences] == [translation.text for translation in result]


async def test_full_server_is_retried_after_its_delay(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, grpc__max_concurrent_requests=1) as server,
        AsyncTranslationClient(server.target) as client,
    ):
        server.model.halt()
        first = asyncio.ensure_future(client.translate(["A man."], **EN_DE))
        await server.model.halted_step()
        second = asyncio.ensure_future(client.translate(["A dog."], **EN_DE))
        await server.until_sample(1, "dragoman_requests_total", method="Translate", status="RESOURCE_EXHAUSTED")
        server.model.resume()

        assert [len(result) for result in await asyncio.gather(first, second)] == [1, 1]


async def test_draining_replica_is_skipped(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model) as draining,
        running_server(tiny_model) as other,
        AsyncTranslationClient(f"ipv4:{draining.target},{other.target}") as client,
    ):
        await draining.app.drain()

        results = [await client.translate(["A man."], **EN_DE) for _ in range(6)]

    assert [len(result) for result in results] == [1] * 6


@pytest.mark.slow
async def test_keepalive_ends_the_calls_of_a_dead_server(tiny_model: Path) -> None:
    settings = ChannelSettings(keepalive_timeout_s=1, retry=ONE_ATTEMPT.retry)
    async with (
        running_server(tiny_model) as server,
        Proxy(server.port) as proxy,
        AsyncTranslationClient(f"127.0.0.1:{proxy.port}", channel=settings) as client,
    ):
        server.model.halt()
        document = asyncio.ensure_future(anext(client.translate_document("A man.", **EN_DE)))
        await server.model.halted_step()
        proxy.vanish()

        async with asyncio.timeout(settings.keepalive_timeout_s + 14):  # pings every 10 s
            with pytest.raises(UnavailableError):
                await document
        server.model.resume()
