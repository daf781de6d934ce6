import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from loadtests.peers.serve import Answer, BatchingSettings, DynamicBatcher
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
        self._has_begun = threading.Semaphore(0)

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        self.batches.append((list(sources), search))
        self._has_begun.release()
        assert self.may_answer.wait(_TIMEOUT_S)
        if any(_POISON in source for source in sources):
            raise ValueError("cannot translate this")
        return [Output(source[::-1], score=-1.0) for source in sources]

    @asynccontextmanager
    async def batching(self, *, num_running: int = 0, **settings: Any) -> AsyncIterator[DynamicBatcher]:
        """Yield a batcher with so many batches under way, which are answered when all others may be."""
        batcher = DynamicBatcher(self.translate, replace(BatchingSettings(batch_size=4, max_wait_ms=0.0), **settings))
        async with asyncio.timeout(_TIMEOUT_S):
            running = []
            for _ in range(num_running):
                running += await _queued(batcher, (0, 0))
                assert await asyncio.to_thread(self._has_begun.acquire, timeout=_TIMEOUT_S)
            yield batcher
            self.may_answer.set()
            await asyncio.gather(*running)
        batcher.close()


async def _queued(batcher: DynamicBatcher, *sources: TokenIds) -> list["asyncio.Task[list[Answer]]"]:
    """Return tasks that have queued what they bring."""
    tasks = [asyncio.create_task(batcher.translate([source], _BEAM_4)) for source in sources]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("num_streams", "sizes"), [(1, [1, 4, 2]), (2, [1, 1, 4, 2])])
async def test_sentences_that_come_while_all_threads_are_busy_go_together(num_streams: int, sizes: list[int]) -> None:
    system = FakeSystem()
    async with system.batching(num_running=num_streams, num_streams=num_streams) as batcher:
        tasks = await _queued(batcher, *((1, index) for index in range(6)))
        system.may_answer.set()
        await asyncio.gather(*tasks)

    assert [len(sources) for sources, _ in system.batches] == sizes


@pytest.mark.parametrize("seed", range(20))
async def test_every_sentence_is_translated_once_in_order_and_with_its_own_options(seed: int) -> None:
    system, draw = FakeSystem(), random.Random(seed)  # noqa: S311 - arrivals
    system.may_answer.set()
    sources: dict[SearchOptions, list[TokenIds]] = {_BEAM_1: [], _BEAM_4: []}
    async with system.batching(max_wait_ms=1.0) as batcher:
        tasks, asked = [], []
        for _ in range(30):
            options, count = draw.choice((_BEAM_1, _BEAM_4)), draw.randrange(7)
            own = [(options.beam_size, len(sources[options]) + index) for index in range(count)]
            sources[options] += own
            asked.append(own)
            tasks.append(asyncio.create_task(batcher.translate(own, options)))
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.0005, 0.002)))
        answers = await asyncio.gather(*tasks)

    assert [[output.token_ids[::-1] for output, _ in own] for own in answers] == asked
    assert max(len(batch) for batch, _ in system.batches) <= 4
    for options, expected in sources.items():
        assert [source for batch, search in system.batches if search == options for source in batch] == expected


@pytest.mark.parametrize(
    ("max_wait_ms", "num_sources", "least_s"),
    [(500 * _TIMEOUT_S, 4, 0.0), (20.0, 1, 0.019)],  # timers may be a little early
)
async def test_a_full_batch_does_not_wait_and_a_small_one_as_long_as_its_first_sentence_may(
    max_wait_ms: float, num_sources: int, least_s: float
) -> None:
    system = FakeSystem()
    system.may_answer.set()
    async with system.batching(max_wait_ms=max_wait_ms) as batcher:
        answers = await asyncio.gather(*await _queued(batcher, *((0, index) for index in range(num_sources))))

    assert [len(sources) for sources, _ in system.batches] == [num_sources]
    assert all(least_s <= timings.queue_s < _TIMEOUT_S / 2 for ((_, timings),) in answers)
    assert all(timings.decode_s >= 0 for ((_, timings),) in answers)


async def test_a_batch_that_fails_fails_its_callers_only() -> None:
    system = FakeSystem()
    async with system.batching(num_running=1, batch_size=2) as batcher:
        tasks = await _queued(batcher, (1, _POISON), (2, 0), (3, 0))
        system.may_answer.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        ((after, _),) = await batcher.translate([(4, 0)], _BEAM_4)

    assert [isinstance(result, EngineError) for result in results] == [True, True, False]
    assert after.token_ids == (0, 4)


async def test_a_full_queue_refuses_and_what_a_caller_has_left_is_not_translated() -> None:
    system = FakeSystem()
    async with system.batching(num_running=1, max_waiting=2) as batcher:
        left, stays = await _queued(batcher, (1, 0), (2, 0))
        with pytest.raises(OverloadedError, match="2 of 2 sentences"):
            await batcher.translate([(3, 0)], _BEAM_4)
        left.cancel()
        await asyncio.wait([left])
        system.may_answer.set()
        await stays

    assert [sources for sources, _ in system.batches] == [[(0, 0)], [(2, 0)]]


@pytest.mark.parametrize("name", ["2x1,b32,w0", "1x2,b8,w5", "4x4,b64,w2.5"])
def test_a_name_says_all_that_is_tried(name: str) -> None:
    settings = BatchingSettings.parse(name).of("transformers")

    assert (settings.name, settings.setup) == (name, f"fp32@{name.partition(',w')[0]}")


@pytest.mark.parametrize("name", ["", "2x1", "0x1,b32,w0", "2x1,b0,w5", "2x1,b32,w-1", "2x1,b32,w5,c"])
def test_what_is_no_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ValueError, match="such as 2x1,b32,w5"):
        BatchingSettings.parse(name)
