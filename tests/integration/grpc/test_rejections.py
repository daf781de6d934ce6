"""Invalid requests over a real connection; unit tests have the whole table of options and limits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import Rejection, RunningServer, rejection, request, running_server
from tests.waiting import until
from tests.without_gc import num_alive, without_gc

TRANSLATE = "/dragoman.v1.TranslationService/Translate"


@pytest.fixture(scope="module")
def server(shared_server: RunningServer) -> RunningServer:
    return shared_server


@pytest.fixture(scope="module")
async def short_documents(tiny_model: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tiny_model, limits__max_document_characters=200) as server:
        yield server


async def rejected(server: RunningServer, message: pb.TranslateRequest) -> Rejection:
    return await rejection(server.translation.Translate(message))


def document(text: str, **fields: Any) -> pb.TranslateDocumentRequest:
    return pb.TranslateDocumentRequest(**{"text": text, "source_language": "en", "target_language": "de", **fields})


@pytest.mark.parametrize("is_stream", [False, True])
async def test_rejected_call_is_freed_without_the_garbage_collector(server: RunningServer, *, is_stream: bool) -> None:
    with without_gc():
        before = num_alive(grpc.aio.AbortError)
        for _ in range(3):
            if is_stream:
                await rejection(anext(aiter(server.translation.TranslateDocument(document("")))))
            else:
                await rejected(server, request())

        await until(lambda: num_alive(grpc.aio.AbortError) <= before + 1)  # gRPC keeps its last call


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request(), "texts"),
        (request("fine", "a" * 10_001), "texts[1]"),
        (request("Привет", source_language=""), "source_language"),
        (request("a", options=pb.DecodingOptions(max_target_tokens=65)), "options.max_target_tokens"),
        (
            request("a", options=pb.DecodingOptions(target_prefix="Ein Mann", max_target_tokens=2)),
            "options.target_prefix",
        ),
        (request("a", "b", target_prefixes=["a", "Zug " * 100]), "target_prefixes[1]"),
        (request("a", options=pb.DecodingOptions(suppressed_tokens=["▁", "no piece"])), "options.suppressed_tokens[1]"),
        (
            request("A man. " * 200, options=pb.DecodingOptions(return_attention=pb.ATTENTION_DETAIL_ALL_HEADS)),
            "texts",
        ),
        (
            request("a", "word " * 80, options=pb.DecodingOptions(long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE)),
            "texts[1]",
        ),
        (request("a", "<a", options=pb.DecodingOptions(format=pb.TEXT_FORMAT_XML)), "texts[1]"),
        (request("a", model="😀" * 500_000, source_language="e" * 100_000), "source_language"),
    ],
)
async def test_invalid_field_is_named(server: RunningServer, message: pb.TranslateRequest, field: str) -> None:
    error = await rejected(server, message)

    assert (error.code, error.reason, error.fields) == ("INVALID_ARGUMENT", "INVALID_FIELD", [field])
    assert error.trailing["x-request-id"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (document(""), "text"),
        (document("x" * 201), "text"),
        (document("x", options=pb.DecodingOptions(split_sentences=False)), "options.split_sentences"),
        (document("<x", options=pb.DecodingOptions(format=pb.TEXT_FORMAT_XML)), "text"),
        (
            document("word " * 40, options=pb.DecodingOptions(long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE)),
            "text",
        ),
    ],
)
async def test_invalid_field_of_a_document_is_named(
    short_documents: RunningServer, message: pb.TranslateDocumentRequest, field: str
) -> None:
    error = await rejection(anext(aiter(short_documents.translation.TranslateDocument(message))))

    assert (error.code, error.fields) == ("INVALID_ARGUMENT", [field])


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x02\xff\xfe", b"\x0a\x7fshort", b"\xff\xff\xff", b"\x12\x03\xed\xa0\x80"],
    ids=["invalid UTF-8 in a text", "cut off", "no protobuf", "surrogate in a language"],
)
async def test_unparsable_request_is_an_invalid_argument(server: RunningServer, message: bytes) -> None:
    def num_rejected() -> float:
        return server.sample("dragoman_requests_total", method="Translate", status="INVALID_ARGUMENT")

    before = num_rejected()
    errors = [
        await rejection(server.channel.unary_unary(TRANSLATE)(message)),
        await rejection(anext(aiter(server.channel.unary_stream(f"{TRANSLATE}Document")(message)))),
    ]

    expected = ("INVALID_ARGUMENT", "INVALID_FIELD", ["request"])
    assert [(error.code, error.reason, error.fields) for error in errors] == [expected] * 2
    assert num_rejected() == before + 1


async def test_request_that_unpacks_beyond_the_limit_is_rejected(server: RunningServer) -> None:
    message = request(" " * 16 * 1024 * 1024)  # 16 kB when compressed

    call = server.translation.Translate(message, compression=grpc.Compression.Gzip)

    assert (await rejection(call)).code == "RESOURCE_EXHAUSTED"


async def test_compressed_request_is_accepted(server: RunningServer) -> None:
    call = server.translation.Translate(request("A man. " * 20), compression=grpc.Compression.Gzip)

    assert (await call).translations
