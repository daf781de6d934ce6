"""What is easily done wrong with the client ends in a TypeError or ValueError that says what to do."""

import asyncio
from typing import Any

import pytest

from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.requests import DecodingOptions
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import RESPONSE, RESULT
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers

UNTYPED: Any = ["a", 3]


def test_a_client_for_asyncio_is_not_made_outside_an_event_loop() -> None:
    with pytest.raises(ValueError, match="no event loop runs: make it in a coroutine"):
        AsyncTranslationClient("localhost:1")


def test_a_client_for_asyncio_is_not_used_in_another_event_loop(target: str) -> None:
    async def make() -> AsyncTranslationClient:
        return AsyncTranslationClient(target)

    async def use(client: AsyncTranslationClient) -> None:
        await client.list_models()

    with asyncio.Runner() as first:
        client = first.run(make())
        with pytest.raises(ValueError, match="belongs to another event loop"), asyncio.Runner() as second:
            second.run(use(client))
        first.run(client.close())


def test_a_closed_client_takes_no_call(target: str) -> None:
    client = TranslationClient(target)
    client.close()

    with pytest.raises(ValueError, match="this TranslationClient is closed: make a new one"):
        client.list_models()
    with pytest.raises(ValueError, match="is closed"):
        next(client.translate_document("One.", **EN_DE))


async def test_a_closed_client_for_asyncio_takes_no_call(target: str) -> None:
    client = AsyncTranslationClient(target)
    await client.close()

    with pytest.raises(ValueError, match="this AsyncTranslationClient is closed: make a new one"):
        await client.list_models()
    with pytest.raises(ValueError, match="is closed"):
        await anext(client.translate_stream([]))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is of type NoneType, must be a sequence of strings"),
        ("One.", "texts is one string, must be a sequence of strings"),
        (b"One.", "texts is of type bytes, must be a sequence of strings"),
        (["One.", None], r"texts\[1\] is of type NoneType, must be str"),
    ],
)
def test_texts_that_are_no_strings_are_named(target: str, texts: Any, message: str) -> None:
    with TranslationClient(target) as client, pytest.raises(TypeError, match=message):
        client.translate(texts, **EN_DE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 2}, "options is of type dict, must be DecodingOptions"),
        ({}, "options is of type dict, must be DecodingOptions"),
        (DecodingOptions(sampling=UNTYPED), "options.sampling is of type list, must be SamplingOptions"),
        (DecodingOptions(suppressed_tokens=UNTYPED), r"suppressed_tokens\[1\] is of type int, must be str"),
    ],
)
def test_options_of_another_type_are_named(target: str, options: Any, message: str) -> None:
    with TranslationClient(target) as client, pytest.raises(TypeError, match=message):
        client.translate(["One."], options=options, **EN_DE)


def test_a_document_that_is_no_string_is_named(target: str) -> None:
    text: Any = ["One."]

    with TranslationClient(target) as client, pytest.raises(TypeError, match="text is of type list, must be str"):
        client.translate_document(text, **EN_DE)


def test_the_newline_behind_a_key_is_left_out(target: str, service: ScriptedService) -> None:
    service.script.append(answers(pb.ListModelsResponse()))

    with TranslationClient(target, api_key="secret\n") as client:
        client.list_models()

    assert service.calls[0].metadata["authorization"] == "Bearer secret"


def test_a_result_is_a_sequence_of_translations(target: str, service: ScriptedService) -> None:
    service.script.append(answers(RESPONSE))

    with TranslationClient(target) as client:
        result = client.translate(["Hello."], **EN_DE)

    assert result[0] is result.translations[0]
    assert (result[-1:], len(result), list(result)) == (RESULT.translations, 1, list(RESULT.translations))
    assert result[0] in result
