"""The client with a real server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.errors import (
    CallCancelledError,
    DeadlineExceededError,
    DrainingError,
    InvalidFieldError,
    ModelNotFoundError,
    StartingError,
)
from dragoman.client.request import DecodingOptions, TranslationRequest
from tests.integration.running_server import RunningServer, listening_server, running_server
from tests.unit.proto.scripted_server import EN_DE

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncTranslationClient]:
    async with AsyncTranslationClient(_target(server), channel=ONE_ATTEMPT) as client:
        yield client


async def test_result_names_its_model(client: AsyncTranslationClient) -> None:
    result = await client.translate(["A man.", "A dog."], request_id="r-1", **EN_DE)

    assert len(result) == 2
    assert (result.model_name, result.model_version, result.request_id) == ("tiny", "1", "r-1")


async def test_both_clients_return_the_same_translation(server: RunningServer, client: AsyncTranslationClient) -> None:
    def translate() -> list[str]:
        with TranslationClient(_target(server)) as blocking:
            return [translation.text for translation in blocking.translate(["A man."], **EN_DE)]

    texts = await asyncio.to_thread(translate)

    assert texts == [translation.text for translation in await client.translate(["A man."], **EN_DE)]


async def test_field_out_of_range_is_named(client: AsyncTranslationClient) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        await client.translate(["A man."], options=DecodingOptions(beam_size=17), **EN_DE)

    assert caught.value.fields == ("options.beam_size",)


async def test_full_server_is_retried_after_its_delay(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, grpc__max_concurrent_requests=1) as server,
        AsyncTranslationClient(_target(server)) as client,
    ):
        server.model.halt()
        first = asyncio.ensure_future(client.translate(["A man."], **EN_DE))
        await server.model.halted_step()
        second = asyncio.ensure_future(client.translate(["A dog."], **EN_DE))
        await server.until_sample(1, "dragoman_requests_total", method="Translate", status="RESOURCE_EXHAUSTED")
        server.model.resume()

        assert [len(result) for result in await asyncio.gather(first, second)] == [1, 1]


async def test_draining_replica_is_skipped(tiny_model: Path) -> None:
    async with running_server(tiny_model) as leaving, running_server(tiny_model) as staying:
        target = f"ipv4:127.0.0.1:{leaving.port},127.0.0.1:{staying.port}"
        async with AsyncTranslationClient(target) as client:
            await leaving.app.drain()

            results = [await client.translate(["A man."], **EN_DE) for _ in range(6)]

    assert [len(result) for result in results] == [1] * 6


async def test_starting_and_draining_servers_raise_their_errors(tiny_model: Path) -> None:
    async with (
        listening_server(tiny_model) as server,
        AsyncTranslationClient(_target(server), channel=ONE_ATTEMPT) as client,
    ):
        with pytest.raises(StartingError):
            await client.translate(["A man."], **EN_DE)
        await server.app.load()
        await server.app.drain()
        with pytest.raises(DrainingError):
            await client.translate(["A man."], **EN_DE)


async def test_cancelled_call_releases_its_slot(server: RunningServer, client: AsyncTranslationClient) -> None:
    server.model.halt()

    with pytest.raises(DeadlineExceededError):
        await client.translate(["A man."], timeout_s=0.2, **EN_DE)
    task = asyncio.ensure_future(client.translate(["A man."], **EN_DE))
    await server.model.halted_step()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    server.model.resume()
    await server.until_sample(0, "dragoman_requests_in_flight", method="Translate")
    assert len(await client.translate(["A man."], **EN_DE)) == 1


async def test_closing_the_client_cancels_its_calls(server: RunningServer) -> None:
    client = AsyncTranslationClient(_target(server))
    server.model.halt()
    task = asyncio.ensure_future(client.translate(["A man."], **EN_DE))
    await server.model.halted_step()

    await client.close()

    with pytest.raises(CallCancelledError):
        await task


async def test_document_is_translated_sentence_by_sentence(client: AsyncTranslationClient) -> None:
    sentences = [sentence async for sentence in client.translate_document("A man. A dog.\n\nA cat.", **EN_DE)]

    assert [sentence.index for sentence in sentences] == list(range(len(sentences)))
    assert "\n\n" in "".join(sentence.text for sentence in sentences)


async def test_failed_request_of_a_stream_does_not_end_the_stream(client: AsyncTranslationClient) -> None:
    requests = [
        TranslationRequest(texts=["A man."], source_language="en", target_language=language, request_id=language)
        for language in ("de", "fr")
    ]

    answers = {answer.request_id: answer async for answer in client.translate_stream(requests)}

    assert len(answers["de"].result()) == 1
    with pytest.raises(ModelNotFoundError):
        answers["fr"].result()


async def test_cancelled_document_releases_its_slot(server: RunningServer, client: AsyncTranslationClient) -> None:
    server.model.halt()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(client.translate_document("A man.", **EN_DE)), 0.3)

    server.model.resume()
    await server.until_sample(0, "dragoman_requests_in_flight", method="TranslateDocument")
    assert len(await client.translate(["A man."], **EN_DE)) == 1


def _target(server: RunningServer) -> str:
    return f"127.0.0.1:{server.port}"
