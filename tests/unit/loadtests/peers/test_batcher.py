import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadtests.peers.batching import BatchingSettings, DynamicBatcher
from loadtests.peers.systems import Output, SearchOptions, TokenIds
from service.errors import EngineError, OverloadedError

_BEAM_4, _BEAM_1 = SearchOptions(), SearchOptions(beam_size=1)
_POISON = 666
_TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang


class FakeSystem:
    """Says what it hears, backwards; holds batches back until told."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[TokenIds], SearchOptions]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_begun = threading.Semaphore(0)

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        self.batches.append((list(sources), search))
        self.has_begun.release()
        assert self.may_answer.wait(_TIMEOUT_S)
        if any(_POISON in source for source in sources):
            raise ValueError("cannot translate this")
        return [Output(token_ids=source[::-1], score=-1.0) for source in sources]


@asynccontextmanager
async def _batching(system: FakeSystem, **settings: float) -> AsyncIterator[DynamicBatcher]:
    made = replace(BatchingSettings(max_batch_size=4, max_wait_s=0.0), **settings)  # type: ignore[arg-type]
    batcher = DynamicBatcher(system.translate, made)
    async with asyncio.timeout(_TIMEOUT_S):
        yield batcher
    batcher.close()


async def _until_begun(system: FakeSystem) -> None:
    assert await asyncio.to_thread(system.has_begun.acquire, timeout=_TIMEOUT_S)


async def _until_queued() -> None:
    """Tasks that were made before run first, and queue what they bring in one go."""
    await asyncio.sleep(0)


async def test_sentences_that_come_while_all_threads_are_busy_go_together() -> None:
    system = FakeSystem()
    system.may_answer.clear()
    async with _batching(system) as batcher:
        first = asyncio.create_task(batcher.translate([(0, 0)], _BEAM_4))
        await _until_begun(system)
        later = [asyncio.create_task(batcher.translate([(1, index)], _BEAM_4)) for index in range(6)]
        await _until_queued()
        system.may_answer.set()
        await asyncio.gather(first, *later)

    assert [len(sources) for sources, _ in system.batches] == [1, 4, 2]


async def test_as_many_batches_run_at_once_as_there_are_streams() -> None:
    system = FakeSystem()
    system.may_answer.clear()
    async with _batching(system, num_streams=2) as batcher:
        tasks = []
        for index in range(2):
            tasks.append(asyncio.create_task(batcher.translate([(index, 0)], _BEAM_4)))
            await _until_begun(system)
        system.may_answer.set()
        await asyncio.gather(*tasks)

    assert [len(sources) for sources, _ in system.batches] == [1, 1]


@pytest.mark.parametrize("seed", range(20))
async def test_every_sentence_is_translated_once_in_order_and_with_its_own_options(seed: int) -> None:
    system, draw = FakeSystem(), random.Random(seed)  # noqa: S311 - arrivals
    sources: dict[SearchOptions, list[TokenIds]] = {_BEAM_1: [], _BEAM_4: []}
    async with _batching(system, max_wait_s=0.001, num_streams=1) as batcher:
        tasks, asked = [], []
        for _ in range(30):
            options, count = draw.choice((_BEAM_1, _BEAM_4)), draw.randrange(7)
            own = [(options.beam_size, len(sources[options]) + index) for index in range(count)]
            sources[options] += own
            asked.append(own)
            tasks.append(asyncio.create_task(batcher.translate(own, options)))
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.0005, 0.002)))
        answers = await asyncio.gather(*tasks)

    assert [[answer.output.token_ids[::-1] for answer in own] for own in answers] == asked
    assert max(len(batch) for batch, _ in system.batches) <= 4
    for options, expected in sources.items():
        assert [source for batch, search in system.batches if search == options for source in batch] == expected


async def test_a_full_batch_does_not_wait_and_a_small_one_no_longer_than_its_first_sentence_may() -> None:
    system = FakeSystem()
    async with _batching(system, max_wait_s=_TIMEOUT_S / 2) as batcher:
        first = asyncio.create_task(batcher.translate([(0, 0), (0, 1)], _BEAM_4))
        await _until_queued()
        (*_, last) = await batcher.translate([(1, 0), (1, 1)], _BEAM_4)
        (answer, _) = await first

    assert len(system.batches) == 1
    assert answer.queue_s >= last.queue_s


async def test_a_batch_that_fails_fails_its_callers_only() -> None:
    system = FakeSystem()
    async with _batching(system, max_batch_size=2) as batcher:
        system.may_answer.clear()
        first = asyncio.create_task(batcher.translate([(0, 0)], _BEAM_4))
        await _until_begun(system)
        sources: list[TokenIds] = [(1, _POISON), (2, 0), (3, 0)]
        tasks = [asyncio.create_task(batcher.translate([source], _BEAM_4)) for source in sources]
        await _until_queued()
        system.may_answer.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)

        after = await batcher.translate([(4, 0)], _BEAM_4)

    assert [isinstance(result, EngineError) for result in results] == [False, True, True, False]
    assert after[0].output.token_ids == (0, 4)


async def test_a_caller_who_finds_the_queue_full_is_refused() -> None:
    system = FakeSystem()
    system.may_answer.clear()
    async with _batching(system, max_waiting=2) as batcher:
        running = asyncio.create_task(batcher.translate([(0, 0)], _BEAM_4))
        await _until_begun(system)
        waiting = asyncio.create_task(batcher.translate([(1, 0), (1, 1)], _BEAM_4))
        await _until_queued()

        with pytest.raises(OverloadedError, match="2 of 2 sentences"):
            await batcher.translate([(2, 0)], _BEAM_4)

        system.may_answer.set()
        await asyncio.gather(running, waiting)


async def test_sentences_of_a_caller_who_has_left_are_not_translated() -> None:
    system = FakeSystem()
    system.may_answer.clear()
    async with _batching(system) as batcher:
        running = asyncio.create_task(batcher.translate([(0, 0)], _BEAM_4))
        await _until_begun(system)
        left = asyncio.create_task(batcher.translate([(1, 0)], _BEAM_4))
        await _until_queued()
        left.cancel()
        await asyncio.wait([left])
        system.may_answer.set()
        await running
        await batcher.translate([(2, 0)], _BEAM_4)

    assert [sources for sources, _ in system.batches] == [[(0, 0)], [(2, 0)]]


async def test_an_answer_says_how_long_it_waited_and_how_long_its_batch_took() -> None:
    async with _batching(FakeSystem(), max_wait_s=0.02) as batcher:
        assert await batcher.translate([], _BEAM_4) == []
        (answer,) = await batcher.translate([(0, 0)], _BEAM_4)

    assert answer.queue_s >= 0.019  # timers may be a little early
    assert answer.translate_s >= 0


@pytest.mark.parametrize("name", ["2x1,b32,w0", "1x2,b8,w5", "4x4,b64,w2.5"])
def test_a_name_says_all_that_is_tried(name: str) -> None:
    settings = BatchingSettings.parse(name)

    assert settings.name == name
    assert settings.of_system("ctranslate2").setup == f"int8@{name.partition(',w')[0]}"


@pytest.mark.parametrize("name", ["", "2x1", "0x1,b32,w0", "2x1,b0,w5", "2x1,b32,w-1", "2x1,b32,w5,c"])
def test_what_is_no_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ValueError, match="such as 2x1,b32,w5"):
        BatchingSettings.parse(name)
