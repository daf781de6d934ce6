"""Over a socket, with a tiny model: both systems answer as the contract says."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from export.graph.network import Network
from loadtests.peers.batching import BatchingSettings
from loadtests.peers.ctranslate2_system import convert
from loadtests.peers.models import network_of, write_model
from loadtests.peers.sentences import encode
from loadtests.peers.serve import PeerServer
from loadtests.peers.systems import ModelFiles, Peer, SearchOptions, System
from loadtests.peers.workers import open_system
from service.bundle import Limits
from tests.tiny_bundle import SENTENCES, tiny_model, tiny_vocabulary

_SETTINGS = BatchingSettings(max_batch_size=4, max_wait_s=0.002, max_waiting=8)
_CALL_S = 30.0  # only reached by a test that would otherwise hang


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    vocabulary = tiny_vocabulary()
    limits = Limits(max_source_tokens=64, max_target_tokens=64)
    network = Network.of(tiny_model(len(vocabulary)))
    files = write_model(tmp_path_factory.mktemp("served") / "tiny", network, vocabulary, limits)
    convert(network_of(files), files.ctranslate2_path)
    return files


@pytest.fixture(scope="module", params=["ctranslate2", "transformers"])
def peer(request: pytest.FixtureRequest) -> Peer:
    name: Peer = request.param
    return name


@pytest.fixture(scope="module")
def system(files: ModelFiles, peer: Peer) -> System:
    return open_system(files, _SETTINGS.of_system(peer))


@pytest_asyncio.fixture
async def channel(files: ModelFiles, system: System) -> AsyncIterator[grpc.aio.Channel]:
    server = PeerServer(files.open(), system, _SETTINGS)
    port = await server.start(host="127.0.0.1", port=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop()


def _request(*texts: str, **fields: Any) -> pb.TranslateRequest:
    return pb.TranslateRequest(texts=texts, **{"source_language": "en", "target_language": "de", **fields})


async def _refusal(channel: grpc.aio.Channel, request: pb.TranslateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pb_grpc.TranslationServiceStub(channel).Translate(request, timeout=_CALL_S)
    return caught.value


async def test_answers_say_what_the_system_says_and_count_its_tokens(
    channel: grpc.aio.Channel, files: ModelFiles, system: System
) -> None:
    text = SENTENCES[0]
    tokenizer = files.open()
    options = pb.DecodingOptions(beam_size=2, max_target_tokens=12, length_penalty=0.0)

    answer = await pb_grpc.TranslationServiceStub(channel).Translate(
        _request(text, f"{text} {SENTENCES[1]}", "", options=options, request_id="r"), timeout=_CALL_S
    )

    search = SearchOptions(beam_size=2, max_target_tokens=12)
    lengths = [len(output.token_ids) for output in _outputs(files, system, SENTENCES[:2], search)]
    assert [len(translation.sentences) for translation in answer.translations] == [1, 2, 0]
    assert [one.num_target_tokens for one in answer.translations[1].sentences] == lengths
    assert answer.num_target_tokens == 2 * lengths[0] + lengths[1]
    assert answer.translations[0].hypotheses[0].text
    assert answer.translations[1].hypotheses[0].text.startswith(answer.translations[0].hypotheses[0].text)
    assert (answer.model_name, answer.model_version, answer.request_id) == (tokenizer.manifest.name, "1", "r")
    assert answer.num_source_tokens > 2 * len(SENTENCES[0].split())
    assert answer.timings.decode.ToNanoseconds() > 0


def _outputs(files: ModelFiles, system: System, texts: tuple[str, ...], search: SearchOptions) -> Any:
    sources = encode(files.open(), texts)
    return system.translate(sources, search, batch_size=4)


async def test_it_tells_that_it_serves(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)

    for name in ("", "dragoman.v1.TranslationService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=_CALL_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"source_language": "fr"}, grpc.StatusCode.NOT_FOUND),
        ({"options": pb.DecodingOptions(beam_size=99)}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"options": pb.DecodingOptions(max_target_tokens=65)}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"options": pb.DecodingOptions(sampling=pb.SamplingOptions())}, grpc.StatusCode.UNIMPLEMENTED),
        ({"options": pb.DecodingOptions(return_tokens=True)}, grpc.StatusCode.UNIMPLEMENTED),
        ({"target_prefixes": ["Ein"]}, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_it_cannot_do_is_refused(
    channel: grpc.aio.Channel, fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    assert (await _refusal(channel, _request(SENTENCES[0], **fields))).code() is code


async def test_a_full_queue_and_other_methods_are_refused(channel: grpc.aio.Channel) -> None:
    refusal = await _refusal(channel, _request(*[SENTENCES[0]] * 9))
    call = pb_grpc.TranslationServiceStub(channel).TranslateDocument(pb.TranslateDocumentRequest(text="A"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()

    assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc-retry-pushback-ms" in dict(refusal.trailing_metadata())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
