from pathlib import Path

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import Refusal, RunningServer, refusal, request, running_server, until
from tests.without_gc import num_alive, without_gc

ALL_HEADS = pb.DecodingOptions(return_attention=pb.ATTENTION_DETAIL_ALL_HEADS)
REFUSING = pb.DecodingOptions(long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE)
TRANSLATE = "/dragoman.v1.TranslationService/Translate"


async def refused(server: RunningServer, message: pb.TranslateRequest) -> Refusal:
    return await refusal(server.translation.Translate(message))


async def refused_bytes(server: RunningServer, message: bytes, method: str = TRANSLATE) -> Refusal:
    return await refusal(server.channel.unary_unary(method)(message))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_rejected_call_is_freed_without_the_garbage_collector(server: RunningServer, *, is_stream: bool) -> None:
    document = pb.TranslateDocumentRequest()  # without languages
    with without_gc():
        before = num_alive(grpc.aio.AbortError)
        for _ in range(3):
            if is_stream:
                await refusal(anext(aiter(server.translation.TranslateDocument(document))))
            else:
                await refused(server, request())

        await until(lambda: num_alive(grpc.aio.AbortError) <= before + 1)  # gRPC keeps its last call


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request(), "texts"),
        (request(*["a"] * 129), "texts"),
        (request("fine", "a" * 10_001), "texts[1]"),
        (request("Привет", source_language=""), "source_language"),
        (request("a", source_language="no tag"), "source_language"),
        (request("a", target_language="x" * 36), "target_language"),
        (request("a", model="../secret"), "model"),
        (request("a", request_id="zwölf"), "request_id"),
        (request("a", options=pb.DecodingOptions(beam_size=4, num_hypotheses=5)), "options.num_hypotheses"),
        (request("a", options=pb.DecodingOptions(max_target_tokens=65)), "options.max_target_tokens"),
        (request("a", options=pb.DecodingOptions(min_target_tokens=64)), "options.min_target_tokens"),
        (
            request("a", options=pb.DecodingOptions(sampling=pb.SamplingOptions(top_p=float("nan")))),
            "options.sampling.top_p",
        ),
        (
            request("a", options=pb.DecodingOptions(target_prefix="Ein Mann", max_target_tokens=2)),
            "options.target_prefix",
        ),
        (request("a", options=pb.DecodingOptions(target_prefix="Zug " * 100)), "options.target_prefix"),
        (request("a", "b", target_prefixes=["a", "Zug " * 100]), "target_prefixes[1]"),
        (request("a", options=pb.DecodingOptions(suppressed_tokens=["▁", "no piece"])), "options.suppressed_tokens[1]"),
        (request("a", options=pb.DecodingOptions(suppressed_tokens=["</s>"])), "options.suppressed_tokens[0]"),
        (request("A man. " * 200, options=ALL_HEADS), "texts"),
        (request("a", "word " * 80, options=REFUSING), "texts[1]"),
    ],
)
async def test_invalid_field_is_named(server: RunningServer, message: pb.TranslateRequest, field: str) -> None:
    error = await refused(server, message)

    assert (error.code, error.reason, error.fields) == ("INVALID_ARGUMENT", "INVALID_FIELD", [field])


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("source_language", "xx", "source_language"),
        ("target_language", "xx", "target_language"),
        ("model", "x", "model"),
    ],
)
async def test_unknown_language_or_model_is_rejected_with_the_served_ones(
    server: RunningServer, field: str, value: str, named: str
) -> None:
    error = await refused(server, request("a", **{field: value}))

    assert (error.code, error.reason, error.fields) == ("NOT_FOUND", "MODEL_NOT_FOUND", [named])
    assert value in error.message
    assert "tiny/1" in error.message or "en" in error.message


async def test_description_of_an_unknown_model_is_not_found(server: RunningServer) -> None:
    error = await refusal(server.model_service.GetModel(pb.GetModelRequest(model="x")))

    assert (error.code, error.fields) == ("NOT_FOUND", ["model"])


async def test_malformed_xml_is_an_invalid_argument(server: RunningServer) -> None:
    error = await refused(server, request("a", "<a", options=pb.DecodingOptions(format=pb.TEXT_FORMAT_XML)))

    assert (error.code, error.reason, error.fields) == ("INVALID_ARGUMENT", "INVALID_FIELD", ["texts[1]"])
    assert "line 1" in error.message


async def test_unknown_method_is_unimplemented(server: RunningServer) -> None:
    error = await refused_bytes(server, b"", "/dragoman.v1.TranslationService/Transmogrify")

    assert error.code == "UNIMPLEMENTED"


async def test_unknown_enum_number_is_an_invalid_argument(server: RunningServer) -> None:
    error = await refused(server, request("a", priority=99))

    assert (error.code, error.fields) == ("INVALID_ARGUMENT", ["priority"])


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x02\xff\xfe", b"\x0a\x7fshort", b"\xff\xff\xff", b"\x12\x03\xed\xa0\x80"],
    ids=["invalid UTF-8 in a text", "cut off", "no protobuf", "surrogate in a language"],
)
async def test_unparsable_request_is_an_invalid_argument(server: RunningServer, message: bytes) -> None:
    error = await refused_bytes(server, message)

    assert (error.code, error.reason, error.fields) == ("INVALID_ARGUMENT", "INVALID_FIELD", ["request"])
    assert server.sample("dragoman_requests_total", method="Translate", status="INVALID_ARGUMENT") == 1


async def test_fields_of_a_newer_contract_are_ignored(server: RunningServer) -> None:
    newer = request("A man.").SerializeToString() + b"\xfa\x3e\x01x"  # field 1007

    assert await server.channel.unary_unary(TRANSLATE)(newer)


async def test_large_message_is_rejected_unread(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__max_message_bytes=1024) as server:
        error = await refused(server, request("a" * 2000))

        assert error.code == "RESOURCE_EXHAUSTED"
        assert (await server.translate("A man.")).translations


async def test_status_of_an_oversized_model_name_is_readable(server: RunningServer) -> None:
    error = await refused(server, request("a", model="😀" * 500_000, source_language="e" * 100_000))

    assert error.code == "INVALID_ARGUMENT"


async def test_rejection_has_the_request_id(server: RunningServer) -> None:
    error = await refused(server, request("a", request_id="r-1", source_language="xx"))

    assert error.trailing["x-request-id"] == "r-1"


async def test_rejections_are_counted_by_reason(server: RunningServer) -> None:
    await refused(server, request())

    assert server.sample("dragoman_rejected_requests_total", reason="invalid_field") == 1
    assert server.sample("dragoman_requests_total", method="Translate", status="INVALID_ARGUMENT") == 1


async def test_compressed_request_is_accepted(server: RunningServer) -> None:
    call = server.translation.Translate(request("A man. " * 20), compression=grpc.Compression.Gzip)

    assert (await call).translations
