"""Cancelled calls: the server notices, the caller gets the right error, and no memory leaks."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dragoman.client import AsyncTranslationClient
from dragoman.client.errors import CallCancelledError
from dragoman.client.request import TranslationRequest
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import (
    EN_DE,
    ScriptedService,
    document_until,
    stream_that_rejects,
    text_request,
)

TIMEOUT_S = 30.0
# Per call; `grpc.aio` alone leaks about 900 for a unary call and 280 for a stream. About 100 bytes of a stream that is
# cancelled before its first response leak whatever the client does.
MAX_LEAKED_BYTES = 150.0


@pytest_asyncio.fixture
async def async_client(target: str) -> AsyncIterator[AsyncTranslationClient]:
    async with AsyncTranslationClient(target) as client:
        yield client


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts with glibc")
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_memory_of_cancelled_calls(target: str, service: ScriptedService, kind: str) -> None:
    service.script.extend([_answers_never if kind == "unary" else _streams_never] * 1000)
    program = [sys.executable, str(Path(__file__).with_name("cancelling_client.py")), target, kind]

    printed = subprocess.run(program, check=True, capture_output=True, text=True, timeout=120).stdout

    assert float(printed) < MAX_LEAKED_BYTES


@pytest.mark.parametrize("is_closed", [False, True])
async def test_cancelled_task_or_closed_client_cancels_the_call(
    async_client: AsyncTranslationClient, service: ScriptedService, *, is_closed: bool
) -> None:
    has_arrived, is_cancelled = threading.Event(), threading.Event()

    def wait(request: Any, context: Any) -> pb.TranslateResponse:
        context.add_callback(is_cancelled.set)
        has_arrived.set()
        is_cancelled.wait()
        return pb.TranslateResponse()

    service.script.append(wait)
    task = asyncio.ensure_future(async_client.translate(["One."], **EN_DE))
    assert await asyncio.to_thread(has_arrived.wait, TIMEOUT_S)

    if is_closed:
        await async_client.close()
    else:
        task.cancel()

    with pytest.raises(CallCancelledError if is_closed else asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(is_cancelled.wait, TIMEOUT_S)


async def test_timeout_within_a_document_cancels_its_call(
    async_client: AsyncTranslationClient, service: ScriptedService
) -> None:
    is_cancelled = threading.Event()
    service.script.append(document_until(is_cancelled))
    sentences = async_client.translate_document("One. Two.", **EN_DE)
    await anext(sentences)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(sentences), 0.05)

    assert await asyncio.to_thread(is_cancelled.wait, TIMEOUT_S)


def test_closing_the_generator_of_a_document_cancels_its_call(client: Any, service: ScriptedService) -> None:
    is_cancelled = threading.Event()
    service.script.append(document_until(is_cancelled))

    sentences = client.translate_document("One. Two.", **EN_DE)
    next(sentences)
    sentences.close()

    assert is_cancelled.wait(TIMEOUT_S)


async def test_closing_a_stream_stops_its_asynchronous_requests(
    async_client: AsyncTranslationClient, service: ScriptedService
) -> None:
    service.script.append(stream_that_rejects("none"))
    is_stopped = asyncio.Event()

    async def requests() -> AsyncIterator[TranslationRequest]:
        yield text_request("one")
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()

    answers = async_client.translate_stream(requests())
    assert (await anext(answers)).request_id == "one"
    await answers.aclose()

    await asyncio.wait_for(is_stopped.wait(), TIMEOUT_S)


def test_exception_of_the_requests_is_raised_after_the_answers(client: Any, service: ScriptedService) -> None:
    service.script.append(stream_that_rejects("none"))

    def requests() -> Iterator[TranslationRequest]:
        yield text_request("one")
        yield text_request("two")
        raise LookupError("no more texts")

    answers = client.translate_stream(requests())

    assert [next(answers).request_id for _ in range(2)] == ["one", "two"]
    with pytest.raises(LookupError):
        next(answers)


def test_request_that_cannot_be_sent_raises_its_error(client: Any, service: ScriptedService) -> None:
    service.script.append(stream_that_rejects("none"))
    requests = [text_request("one"), TranslationRequest(texts="not a list", target_language="de")]

    with pytest.raises(TypeError, match="texts"):
        list(client.translate_stream(requests))


def _answers_never(request: Any, context: Any) -> pb.TranslateResponse:
    is_cancelled = threading.Event()
    if context.add_callback(is_cancelled.set):
        is_cancelled.wait()
    return pb.TranslateResponse()


def _streams_never(request: Any, context: Any) -> Iterator[pb.TranslatedSentence]:
    _answers_never(request, context)
    yield pb.TranslatedSentence()
