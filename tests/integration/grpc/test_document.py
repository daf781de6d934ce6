"""TranslateDocument over a real connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.client import AsyncTranslationClient
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.running_server import RunningServer, refusal, running_server
from tests.tiny_bundle import SENTENCES

TEXT = "  A man rides a bicycle. Two children play.\n\n- The train.\r\n\t- Dr. Smith reads... a long letter?\n...\n"

MUCH_TO_COPY = "." * 20_000
QUICK = pb.DecodingOptions(beam_size=1, max_target_tokens=2)


def document(text: str, **fields: Any) -> pb.TranslateDocumentRequest:
    return pb.TranslateDocumentRequest(**{"text": text, "source_language": "en", "target_language": "de", **fields})


def translate(server: RunningServer, text: str, *, timeout_s: float | None = None, **fields: Any) -> Any:
    """Start a call and return its stream."""
    return server.translation.TranslateDocument(document(text, **fields), timeout=timeout_s)


async def first_of(call: Any) -> pb.TranslatedSentence:
    """Return the first sentence; also fit for `refusal`."""
    sentence = await call.read()
    assert isinstance(sentence, pb.TranslatedSentence)
    return sentence


async def rest_of(call: Any) -> list[pb.TranslatedSentence]:
    """Return the remaining sentences."""
    sentences = []
    while (sentence := await call.read()) is not grpc.aio.EOF:
        sentences.append(sentence)
    return sentences


@contextlib.asynccontextmanager
async def slow_reader(server: RunningServer) -> AsyncIterator[Any]:
    """Connect with a flow-control window of 64 KiB; yield the method."""
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        yield pb_grpc.TranslationServiceStub(channel).TranslateDocument


async def num_decoded_once_it_stands_still(server: RunningServer) -> float:
    """Return the number of decoded segments once it is stable, while other calls are answered."""
    quiet_rounds = 0
    while quiet_rounds < 5:
        decoded = server.sample("dragoman_segments_total", outcome="ok")
        await server.translate("A man.", options=QUICK)
        quiet_rounds = quiet_rounds + 1 if server.sample("dragoman_segments_total", outcome="ok") == decoded + 1 else 0
    return decoded


async def test_sentences_are_ordered_and_add_up_to_the_translation(server: RunningServer) -> None:
    call = translate(server, TEXT, request_id="d1")

    sentences = [sentence async for sentence in call]

    (whole,) = (await server.translate(TEXT)).translations
    assert await call.code() is grpc.StatusCode.OK
    assert "".join(sentence.text for sentence in sentences) == whole.hypotheses[0].text
    assert [sentence.sentence for sentence in sentences] == list(whole.sentences)
    assert [sentence.index for sentence in sentences] == list(range(4))
    assert {(one.model_name, one.model_version, one.request_id) for one in sentences} == {("tiny", "1", "d1")}
    assert dict(await call.trailing_metadata())["x-request-id"] == "d1"


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 3, "num_hypotheses": 2, "return_scores": True, "return_tokens": True},
        {"sampling": pb.SamplingOptions(seed=5), "num_hypotheses": 2},
        {"target_prefix": "Ein Mann"},
        {"return_alignment": True},
    ],
)
async def test_options_apply_as_for_a_text(server: RunningServer, options: dict[str, Any]) -> None:
    options_ = pb.DecodingOptions(**options)

    sentences = [sentence async for sentence in translate(server, TEXT, options=options_)]

    (whole,) = (await server.translate(TEXT, options=options_)).translations
    best = [sentence.hypotheses[0] for sentence in sentences]
    assert "".join(sentence.text for sentence in sentences) == whole.hypotheses[0].text
    assert [token for one in best for token in one.tokens] == list(whole.hypotheses[0].tokens)
    assert sum(one.score for one in best) == pytest.approx(whole.hypotheses[0].score)
    links = [link.source for one in best for link in one.alignment]
    assert links == [link.source for link in whole.hypotheses[0].alignment]


async def test_sentence_is_sent_while_later_ones_wait(server: RunningServer) -> None:
    call = translate(server, "A man. " * 150, options=QUICK)

    await first_of(call)

    assert server.sample("dragoman_segments_total", outcome="ok") < 150
    assert server.sample("dragoman_first_sentence_seconds_count") == 1
    call.cancel()


async def test_client_reads_a_document(server: RunningServer) -> None:
    client = AsyncTranslationClient(f"127.0.0.1:{server.port}")

    texts = [one.text async for one in client.translate_document(TEXT, source_language="en", target_language="de")]

    await client.close()
    assert "".join(texts) == (await server.translate(TEXT)).translations[0].hypotheses[0].text


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (document(""), "INVALID_ARGUMENT", "text"),
        (document("x" * 201), "INVALID_ARGUMENT", "text"),
        (document("x", request_id="ß"), "INVALID_ARGUMENT", "request_id"),
        (
            document("x", options=pb.DecodingOptions(split_sentences=False)),
            "INVALID_ARGUMENT",
            "options.split_sentences",
        ),
        (document("<x", options=pb.DecodingOptions(format=pb.TEXT_FORMAT_XML)), "INVALID_ARGUMENT", "text"),
        (document("x", target_language="fr"), "NOT_FOUND", "target_language"),
        (
            document("word " * 40, options=pb.DecodingOptions(long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE)),
            "INVALID_ARGUMENT",
            "text",
        ),
    ],
)
async def test_invalid_request_is_rejected_with_its_field(
    tiny_model: Path, request_: pb.TranslateDocumentRequest, code: str, field: str
) -> None:
    async with running_server(tiny_model, limits__max_document_characters=200) as server:
        error = await refusal(first_of(server.translation.TranslateDocument(request_)))

        assert (error.code, error.fields) == (code, [field])
        assert error.trailing["x-request-id"]


async def test_invalid_message_is_an_invalid_argument(server: RunningServer) -> None:
    method = server.channel.unary_stream("/dragoman.v1.TranslationService/TranslateDocument")

    error = await refusal(first_of(method(b"\x0a\x02\xff\xfe")))

    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")


async def test_limit_of_a_document_is_listed(tiny_model: Path) -> None:
    async with running_server(tiny_model, limits__max_document_characters=77) as server:
        (model,) = (await server.model_service.ListModels(pb.ListModelsRequest())).models

        assert model.versions[0].limits.max_document_characters == 77
        assert not [field for field in model.versions[0].unsupported_fields if "ocument" in field]


async def test_only_the_window_is_decoded_without_a_reader(tiny_model: Path) -> None:
    settings = {"limits__document_window_segments": 4, "limits__max_document_characters": 4_000_000}
    async with running_server(tiny_model, **settings) as server, slow_reader(server) as method:
        call = method(document(f"A man.\n{MUCH_TO_COPY}\n" * 150, options=QUICK))
        await first_of(call)

        decoded = await num_decoded_once_it_stands_still(server)

        assert decoded < 60
        assert server.sample("dragoman_queue_segments") == 0
        call.cancel()
        await server.until_sample(1, "dragoman_requests_total", method="TranslateDocument", status="CANCELLED")


async def test_reader_gets_the_rest_after_a_pause(tiny_model: Path) -> None:
    async with running_server(tiny_model, limits__document_window_segments=2) as server, slow_reader(server) as method:
        call = method(document(f"A man.\n{MUCH_TO_COPY}\n" * 40, options=QUICK))
        await first_of(call)
        await num_decoded_once_it_stands_still(server)

        rest = await rest_of(call)

        assert [sentence.index for sentence in rest] == list(range(1, 40))


async def test_cancelled_document_is_removed_from_queue_and_batch(server: RunningServer) -> None:
    server.model.halt()
    call = translate(server, "A man. " * 200)
    reading = asyncio.ensure_future(call.read())
    await server.model.halted_step()

    call.cancel()
    await server.until_sample(1, "dragoman_requests_total", method="TranslateDocument", status="CANCELLED")
    with pytest.raises(asyncio.CancelledError):
        await reading

    server.model.resume()
    await server.until_sample(64, "dragoman_segments_total", outcome="cancelled")
    await server.until_sample(0, "dragoman_queue_segments")
    assert (await server.translate("A man.")).translations


async def test_deadline_of_the_caller_ends_a_document(server: RunningServer) -> None:
    server.model.halt()

    error = await refusal(first_of(translate(server, "A man. " * 200, timeout_s=0.3)))

    assert error.code == "DEADLINE_EXCEEDED"
    await server.until_sample(1, "dragoman_requests_total", method="TranslateDocument", status="DEADLINE_EXCEEDED")
    assert server.sample("dragoman_queue_segments") == 0


async def test_document_without_deadline_ends_after_the_default(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__default_stream_timeout_s=0.01) as server:
        server.model.halt()

        error = await refusal(first_of(translate(server, "A man.")))

        assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


async def test_drain_waits_for_a_document(server: RunningServer) -> None:
    server.model.halt()
    call = translate(server, "A man. " * 100, options=QUICK)
    reading = asyncio.ensure_future(first_of(call))
    await server.model.halted_step()

    drain = asyncio.ensure_future(server.app.drain())
    await server.until_sample(0, "dragoman_ready")
    server.model.resume()

    assert (await reading).index == 0
    assert [sentence.index for sentence in await rest_of(call)] == list(range(1, 100))
    assert await drain


async def test_five_megabytes_are_translated(tiny_model: Path) -> None:
    line = "." * 9_999 + "\n"
    text = "".join(f"{line * 10}{sentence}\n" for sentence in SENTENCES * 6) + line * 20
    settings = {"limits__max_document_characters": 6_000_000, "grpc__max_message_bytes": 6_000_000}
    async with running_server(tiny_model, **settings) as server:
        sentences = [sentence async for sentence in translate(server, text, options=QUICK)]

        assert len(text) > 5_000_000
        assert sum(sentence.HasField("sentence") for sentence in sentences) == 48
        rest = "".join(sentence.text for sentence in sentences)
        for sentence in reversed(sentences):
            span = sentence.sentence.target
            rest = rest[: span.start] + rest[span.end :]
        assert rest.replace("\n\n", "\n") == line * (48 * 10 + 20)
        assert max(len(sentence.text) for sentence in sentences) < 100_000


async def test_document_is_counted_and_timed(server: RunningServer) -> None:
    async for _ in translate(server, TEXT):
        pass

    labels = {"method": "TranslateDocument"}
    assert server.sample("dragoman_requests_total", status="OK", **labels) == 1
    assert server.sample("dragoman_request_duration_seconds_count", **labels) == 1
    assert server.sample("dragoman_requests_in_flight", **labels) == 0
