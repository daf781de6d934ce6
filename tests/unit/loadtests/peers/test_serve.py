"""Its batches over a system that holds them back until told, and all of it over a socket, with a tiny model."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.bundle.files import Bundle
from dragoman_service.errors import EngineError, OverloadedError
from loadtests.benchmarks.serve import BatchingSettings, DynamicBatcher, serving
from loadtests.benchmarks.systems import Output, SearchOptions, System, TokenIds, open_system
from loadtests.benchmarks.work import encode
from tests.tiny_bundle import SENTENCES
from tests.unit.loadtests.benchmarks.tiny_files import write_tiny_model

_BEAM_4, _BEAM_1 = SearchOptions(), SearchOptions(beam_size=1)
_POISON, _LEAVES = 666, 777
_SETTINGS = BatchingSettings(batch_size=4, max_wait_ms=2.0, max_waiting=8)
_TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang


class FakeSystem:
    """Says what it hears, backwards."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[TokenIds], SearchOptions]] = []
        self.has_begun, self.may_answer = threading.Semaphore(0), threading.Event()
        self.may_answer.set()

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        assert len(sources) <= batch_size
        self.batches.append((list(sources), search))
        self.has_begun.release()
        assert self.may_answer.wait(_TIMEOUT_S)
        if any(_POISON in source for source in sources):
            raise ValueError("cannot translate this")
        return [Output(source[::-1], score=-1.0) for source in sources]


@asynccontextmanager
async def _batching(system: FakeSystem, **settings: Any) -> AsyncIterator[DynamicBatcher]:
    batcher = DynamicBatcher(system, BatchingSettings(**{"batch_size": 4, "max_wait_ms": 0.0, **settings}))
    async with asyncio.timeout(_TIMEOUT_S):
        yield batcher
    batcher.close()


@pytest.mark.parametrize(
    ("settings", "seconds", "batches", "failed"),
    [
        ({}, [0] * 6, [[0] * 4, [0] * 2], {}),  # what comes while all threads are busy goes together
        ({"num_streams": 2}, [0] * 6, [[0] * 4, [0] * 2], {}),
        ({"batch_size": 2}, [0, _POISON, 0], [[0, _POISON], [0]], dict.fromkeys((0, 1), EngineError)),
        ({"max_waiting": 2}, [_LEAVES, 0, 0], [[0]], {0: asyncio.CancelledError, 2: OverloadedError}),
    ],
)
async def test_a_batch_fails_its_callers_only_a_full_queue_refuses_and_who_has_left_is_not_served(
    settings: dict[str, Any], seconds: list[int], batches: list[list[int]], failed: dict[int, type]
) -> None:
    system, running = FakeSystem(), []
    system.may_answer.clear()

    async def queued(number: int, second: int) -> "asyncio.Task[Any]":
        task = asyncio.create_task(batcher.translate([(number, second)], _BEAM_4))
        await asyncio.sleep(0)
        return task

    async with _batching(system, **settings) as batcher:
        for stream in range(settings.get("num_streams", 1)):
            running.append(await queued(stream, 0))
            assert await asyncio.to_thread(system.has_begun.acquire, timeout=_TIMEOUT_S)
        tasks = [await queued(number, second) for number, second in enumerate(seconds)]
        for task, second in zip(tasks, seconds, strict=True):
            if second == _LEAVES:
                task.cancel()
                await asyncio.wait([task])
        system.may_answer.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        ((after, _),) = await batcher.translate([(4, 0)], _BEAM_4)
        await asyncio.gather(*running)

    assert [[second for _, second in sources] for sources, _ in system.batches[len(running) : -1]] == batches
    assert {index: type(found) for index, found in enumerate(results) if isinstance(found, BaseException)} == failed
    assert after.token_ids == (0, 4)


@pytest.mark.parametrize("seed", range(20))
async def test_every_sentence_is_translated_once_in_order_and_with_its_own_options(seed: int) -> None:
    draw, tasks, asked = random.Random(seed), [], []  # noqa: S311 - arrivals
    sources: dict[SearchOptions, list[TokenIds]] = {_BEAM_1: [], _BEAM_4: []}
    async with _batching(system := FakeSystem(), max_wait_ms=1.0) as batcher:
        for _ in range(30):
            options, count = draw.choice((_BEAM_1, _BEAM_4)), draw.randrange(7)
            own = [(options.beam_size, len(sources[options]) + index) for index in range(count)]
            sources[options] += own
            asked.append(own)
            tasks.append(asyncio.create_task(batcher.translate(own, options)))
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.0005, 0.002)))
        answers = await asyncio.gather(*tasks)

    assert [[output.token_ids[::-1] for output, _ in own] for own in answers] == asked
    for options, expected in sources.items():
        assert [source for batch, search in system.batches if search == options for source in batch] == expected


@pytest.mark.parametrize(
    ("max_wait_ms", "num_sources", "least_s"),
    [(500 * _TIMEOUT_S, 4, 0.0), (20.0, 1, 0.019)],  # timers may be a little early
)
async def test_only_a_batch_that_is_not_full_waits(max_wait_ms: float, num_sources: int, least_s: float) -> None:
    async with _batching(system := FakeSystem(), max_wait_ms=max_wait_ms) as batcher:
        answers = await batcher.translate([(0, index) for index in range(num_sources)], _BEAM_4)

    assert [len(sources) for sources, _ in system.batches] == [num_sources]
    assert all(least_s <= timings.queue_s < _TIMEOUT_S / 2 and timings.decode_s >= 0 for _, timings in answers)


def test_a_name_says_all_that_is_tried_and_what_is_none_is_refused_with_an_example() -> None:
    for name in ("2x1,b32,w0", "1x2,b8,w5", "4x4,b64,w2.5"):
        settings = BatchingSettings.parse(name).of("transformers")
        assert BatchingSettings.parse(name).of("transformers", "cuda") == replace(
            settings, precision="fp16", device="cuda"
        )
        assert (settings.name, settings.setup) == (name, f"fp32@{name.partition(',w')[0]}")
    for name in ("", "2x1", "0x1,b32,w0", "2x1,b0,w5", "2x1,b32,w-1", "2x1,b32,w5,c"):
        with pytest.raises(ValueError, match="such as 2x1,b32,w5"):
            BatchingSettings.parse(name)


@pytest.fixture(scope="module", params=["ctranslate2", "transformers"])
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Bundle, System]:
    files = write_tiny_model(tmp_path_factory.mktemp("served") / "tiny")
    return files.open(), open_system(files, _SETTINGS.of(request.param))


@pytest_asyncio.fixture
async def channel(served: tuple[Bundle, System]) -> AsyncIterator[grpc.aio.Channel]:
    async with (
        serving(*served, _SETTINGS, address="127.0.0.1:0") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


def _translate(channel: grpc.aio.Channel, **fields: Any) -> Any:
    request = pb.TranslateRequest(**{"source_language": "en", "target_language": "de", **fields})
    return pb_grpc.TranslationServiceStub(channel).Translate(request, timeout=_TIMEOUT_S)


async def test_answers_are_what_the_system_says(channel: grpc.aio.Channel, served: tuple[Bundle, System]) -> None:
    (bundle, system), (first, second) = served, SENTENCES[:2]
    options = pb.DecodingOptions(beam_size=2, max_target_tokens=12, length_penalty=0.0)

    answer = await _translate(channel, texts=(first, f"{first} {second}", ""), options=options, request_id="r")

    search = SearchOptions(beam_size=2, max_target_tokens=12)
    lengths = [len(ids) for ids, _ in system.translate(encode(bundle, (first, second)), search, batch_size=4)]
    lone, both, empty = answer.translations
    assert [len(one.sentences) for one in (lone, both, empty)] == [1, 2, 0]
    assert [one.num_target_tokens for one in both.sentences] == lengths
    assert answer.num_target_tokens == 2 * lengths[0] + lengths[1]
    assert lone.hypotheses[0].text
    assert both.hypotheses[0].text.startswith(lone.hypotheses[0].text)
    assert (answer.model_name, answer.model_version, answer.request_id) == ("tiny", "1", "r")
    assert answer.num_source_tokens > 2 * len(first.split())
    assert answer.timings.decode.ToNanoseconds() > 0
    for name in ("", "dragoman.v1.TranslationService"):
        told = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
        assert told.status == health_pb2.HealthCheckResponse.SERVING


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
