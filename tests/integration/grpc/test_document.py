"""TranslateDocument over a real connection."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.running_server import RunningServer, rejection, running_server
from tests.tiny_bundle import SENTENCES

TEXT = "  A man rides a bicycle. Two children play.\n\n- The train.\r\n\t- Dr. Smith reads... a long letter?\n...\n"

MUCH_TO_COPY = "." * 20_000
QUICK = pb.DecodingOptions(beam_size=1, max_target_tokens=2)
ONE_SEARCH = pb.DecodingOptions(max_target_tokens=2, sampling=pb.SamplingOptions(seed=1))
"""Options of calls that decode one segment: samples are not decoded again."""


def document(text: str, **fields: Any) -> pb.TranslateDocumentRequest:
    return pb.TranslateDocumentRequest(**{"text": text, "source_language": "en", "target_language": "de", **fields})


def translate(server: RunningServer, text: str, **fields: Any) -> Any:
    """Start a call and return its stream."""
    return server.translation.TranslateDocument(document(text, **fields))


@contextlib.asynccontextmanager
async def slow_reader(server: RunningServer) -> AsyncIterator[Any]:
    """Connect with a flow-control window of 64 KiB; yield the method."""
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(server.target, options=options) as channel:
        yield pb_grpc.TranslationServiceStub(channel).TranslateDocument


async def num_decoded_without_reader(server: RunningServer) -> float:
    """Return the number of decoded segments once it is stable, while other calls are answered."""
    quiet_rounds = 0
    while quiet_rounds < 5:
        decoded = server.sample("dragoman_segments_total", outcome="ok")
        await server.translate("A man.", options=ONE_SEARCH)
        quiet_rounds = quiet_rounds + 1 if server.sample("dragoman_segments_total", outcome="ok") == decoded + 1 else 0
    return decoded


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_hypotheses": 2, "return_scores": True, "return_tokens": True},
        {"return_alignment": True},
    ],
)
async def test_sentences_are_ordered_and_add_up_to_the_translation(
    server: RunningServer, options: dict[str, Any]
) -> None:
    options_ = pb.DecodingOptions(**options)
    call = translate(server, TEXT, request_id="d1", options=options_)

    sentences = [sentence async for sentence in call]

    (whole,) = (await server.translate(TEXT, options=options_)).translations
    assert await call.code() is grpc.StatusCode.OK
    assert "".join(sentence.text for sentence in sentences) == whole.hypotheses[0].text
    assert [sentence.sentence for sentence in sentences] == list(whole.sentences)
    assert [sentence.index for sentence in sentences] == list(range(4))
    assert {(each.model_name, each.model_version, each.request_id) for each in sentences} == {("tiny", "1", "d1")}
    assert dict(await call.trailing_metadata())["x-request-id"] == "d1"
    best = [sentence.hypotheses[0] for sentence in sentences]
    assert [token for each in best for token in each.tokens] == list(whole.hypotheses[0].tokens)
    assert sum(each.score for each in best) == pytest.approx(whole.hypotheses[0].score)
    links = [link.source for each in best for link in each.alignment]
    assert links == [link.source for link in whole.hypotheses[0].alignment]


async def test_sentence_is_sent_before_later_ones_are_decoded(server: RunningServer) -> None:
    call = translate(server, "A man. " * 150, options=QUICK)

    assert (await call.read()).index == 0

    assert server.sample("dragoman_segments_total", outcome="ok") < 150
    assert server.sample("dragoman_first_sentence_seconds_count") == 1
    call.cancel()


async def test_limit_of_a_document_is_listed(tiny_model: Path) -> None:
    async with running_server(tiny_model, limits__max_document_characters=77) as server:
        (model,) = (await server.model_service.ListModels(pb.ListModelsRequest())).models

    assert model.versions[0].limits.max_document_characters == 77
    assert not [field for field in model.versions[0].unsupported_fields if "ocument" in field]


async def test_only_the_window_is_decoded_without_a_reader(tiny_model: Path) -> None:
    settings = {"limits__document_window_segments": 4, "limits__max_document_characters": 4_000_000}
    async with running_server(tiny_model, **settings) as server, slow_reader(server) as method:
        call = method(document(f"A man.\n{MUCH_TO_COPY}\n" * 150, options=QUICK))
        await call.read()

        assert await num_decoded_without_reader(server) < 60

        assert server.sample("dragoman_queue_segments") == 0
        call.cancel()
        await server.until_sample(1, "dragoman_requests_total", method="TranslateDocument", status="CANCELLED")


async def test_reader_gets_the_rest_after_a_pause(tiny_model: Path) -> None:
    async with running_server(tiny_model, limits__document_window_segments=2) as server, slow_reader(server) as method:
        sentences = aiter(method(document(f"A man.\n{MUCH_TO_COPY}\n" * 40, options=QUICK)))
        await anext(sentences)
        await num_decoded_without_reader(server)

        assert [sentence.index async for sentence in sentences] == list(range(1, 40))


async def test_document_without_deadline_ends_after_the_default(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__default_stream_timeout_s=0.01) as server:
        server.model.halt()

        error = await rejection(translate(server, "A man.").read())

    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


@pytest.mark.slow
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
