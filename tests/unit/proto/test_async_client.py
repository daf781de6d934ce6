import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2

from dragoman.client import AsyncTranslationClient
from dragoman.errors import DeadlineExceededError, FieldViolation, InvalidRequestError
from dragoman.requests import TranslationRequest
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import (
    EN_DE,
    ScriptedService,
    answers,
    document_until,
    refuses,
    stream_that_refuses,
)

REQUESTS = [
    TranslationRequest(texts=["One."], source_language="en", target_language="de", request_id=request_id)
    for request_id in ("good", "bad")
]


@pytest_asyncio.fixture
async def client(target: str) -> AsyncIterator[AsyncTranslationClient]:
    async with AsyncTranslationClient(target) as client:
        yield client


async def test_calls_run_side_by_side(client: AsyncTranslationClient, service: ScriptedService) -> None:
    both_are_here = threading.Barrier(2, timeout=10.0)
    service.script += [_answers_after(both_are_here)] * 2

    results = await asyncio.gather(*(client.translate(["One."], **EN_DE) for _ in range(2)))

    assert [[translation.text for translation in result] for result in results] == [["Eins."], ["Eins."]]


async def test_an_error_says_which_fields(client: AsyncTranslationClient, service: ScriptedService) -> None:
    detail = error_details_pb2.BadRequest()
    detail.field_violations.add(field="texts", description="is empty")
    service.script.append(refuses(grpc.StatusCode.INVALID_ARGUMENT, detail))

    with pytest.raises(InvalidRequestError) as caught:
        await client.translate([], **EN_DE)

    assert caught.value.field_violations == (FieldViolation(field="texts", description="is empty"),)


async def test_a_passed_deadline_is_an_error_of_its_own(
    client: AsyncTranslationClient, service: ScriptedService
) -> None:
    has_left = threading.Event()
    service.script.append(document_until(has_left))

    with pytest.raises(DeadlineExceededError):
        [sentence async for sentence in client.translate_document("One. Two.", timeout_s=0.1, **EN_DE)]


async def test_leaving_a_document_early_cancels_its_call(
    client: AsyncTranslationClient, service: ScriptedService
) -> None:
    has_left = threading.Event()
    service.script.append(document_until(has_left))

    sentences = client.translate_document("One. Two.", **EN_DE)
    first = await anext(sentences)
    await sentences.aclose()

    assert first.text == "Eins. "
    assert await asyncio.to_thread(has_left.wait, 10.0)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_bad_request_of_a_stream_fails_alone(
    client: AsyncTranslationClient, service: ScriptedService, *, is_async: bool
) -> None:
    service.script.append(stream_that_refuses("bad"))
    requests = _one_by_one(REQUESTS) if is_async else REQUESTS

    answered = {answer.request_id: answer async for answer in client.translate_stream(requests)}

    assert isinstance(answered["bad"].outcome, InvalidRequestError)
    assert answered["good"].result().request_id == "good"


async def test_models_are_listed_and_found(client: AsyncTranslationClient, service: ScriptedService) -> None:
    tiny = pb.Model(name="tiny")
    service.script += [answers(pb.ListModelsResponse(models=[tiny])), answers(pb.GetModelResponse(model=tiny))]

    models = await client.list_models()
    model = await client.get_model("tiny")

    assert models == (model,)
    assert model.name == "tiny"


def _answers_after(barrier: threading.Barrier) -> Any:
    def behave(request: Any, context: Any) -> pb.TranslateResponse:
        barrier.wait()
        return pb.TranslateResponse(translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="Eins.")])])

    return behave


async def _one_by_one(requests: list[TranslationRequest]) -> AsyncIterator[TranslationRequest]:
    for request in requests:
        yield request
