"""Over a socket, with a tiny model: both systems answer as the contract says."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtests.peers.serve import BatchingSettings, serving
from loadtests.peers.systems import ModelFiles, SearchOptions, System, open_system
from loadtests.peers.work import encode
from tests.tiny_bundle import SENTENCES
from tests.unit.loadtests.peers.tiny_files import write_tiny_model

_SETTINGS = BatchingSettings(batch_size=4, max_wait_ms=2.0, max_waiting=8)
_CALL_S = 30.0  # only reached by a test that would otherwise hang


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_tiny_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module", params=["ctranslate2", "transformers"])
def system(files: ModelFiles, request: pytest.FixtureRequest) -> System:
    return open_system(files, _SETTINGS.of(request.param))


@pytest_asyncio.fixture
async def channel(files: ModelFiles, system: System) -> AsyncIterator[grpc.aio.Channel]:
    async with (
        serving(files.open(), system, _SETTINGS, host="127.0.0.1", port=0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


def _translate(channel: grpc.aio.Channel, **fields: Any) -> Any:
    request = pb.TranslateRequest(**{"source_language": "en", "target_language": "de", **fields})
    return pb_grpc.TranslationServiceStub(channel).Translate(request, timeout=_CALL_S)


async def test_answers_say_what_the_system_says_and_count_its_tokens(
    channel: grpc.aio.Channel, files: ModelFiles, system: System
) -> None:
    first, second = SENTENCES[:2]
    options = pb.DecodingOptions(beam_size=2, max_target_tokens=12, length_penalty=0.0)

    answer = await _translate(channel, texts=(first, f"{first} {second}", ""), options=options, request_id="r")

    search = SearchOptions(beam_size=2, max_target_tokens=12)
    outputs = system.translate(encode(files.open(), (first, second)), search, batch_size=4)
    lengths = [len(output.token_ids) for output in outputs]
    assert [len(translation.sentences) for translation in answer.translations] == [1, 2, 0]
    assert [one.num_target_tokens for one in answer.translations[1].sentences] == lengths
    assert answer.num_target_tokens == 2 * lengths[0] + lengths[1]
    assert answer.translations[0].hypotheses[0].text
    assert answer.translations[1].hypotheses[0].text.startswith(answer.translations[0].hypotheses[0].text)
    assert (answer.model_name, answer.model_version, answer.request_id) == ("tiny", "1", "r")
    assert answer.num_source_tokens > 2 * len(first.split())
    assert answer.timings.decode.ToNanoseconds() > 0


async def test_it_tells_that_it_serves(channel: grpc.aio.Channel) -> None:
    for name in ("", "dragoman.v1.TranslationService"):
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"source_language": "fr"}, "NOT_FOUND"),
        ({"options": pb.DecodingOptions(beam_size=99)}, "INVALID_ARGUMENT"),
        ({"options": pb.DecodingOptions(max_target_tokens=65)}, "INVALID_ARGUMENT"),
        ({"options": pb.DecodingOptions(sampling=pb.SamplingOptions())}, "UNIMPLEMENTED"),
        ({"options": pb.DecodingOptions(return_tokens=True)}, "UNIMPLEMENTED"),
        ({"target_prefixes": ["Ein"]}, "UNIMPLEMENTED"),
        ({"texts": [SENTENCES[0]] * 9}, "RESOURCE_EXHAUSTED"),  # the queue is full
    ],
)
async def test_what_it_cannot_do_is_refused(channel: grpc.aio.Channel, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _translate(channel, **{"texts": SENTENCES[:1], **fields})
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await pb_grpc.TranslationServiceStub(channel).TranslateDocument(pb.TranslateDocumentRequest(text="A")).read()

    assert caught.value.code().name == code
    assert ("grpc-retry-pushback-ms" in dict(caught.value.trailing_metadata())) == (code == "RESOURCE_EXHAUSTED")
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
