"""Dynamic batching over one system: sentences of all callers wait together, batches run in threads."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from loadtests.peers.systems import Output, Peer, Precision, SearchOptions, SystemSettings, TokenIds
from service.errors import EngineError, OverloadedError

PRECISIONS: Final[dict[Peer, Precision]] = {"ctranslate2": "int8", "transformers": "fp32"}
"""What can be served so, at the precision at which it is quickest: Transformers has no int8 on CPUs."""

Translate = Callable[[Sequence[TokenIds], SearchOptions], Sequence[Output]]
"""Returns the best hypothesis of each source of a batch, in order; called by several threads at once."""

_PATTERN: Final = re.compile(r"(\d+)x(\d+),b(\d+),w(\d+(?:\.\d+)?)")
_RETRY_AFTER_S: Final = 1.0
"""What a caller is told who finds the queue full."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """The usual dynamic batching."""

    num_streams: int = 1
    """Batches translated at the same time; inter_threads of CTranslate2."""

    num_threads: int = 1
    """Threads of each; intra_threads of CTranslate2."""

    max_batch_size: int = 32
    """Most sentences of a batch."""

    max_wait_s: float = 0.005
    """How long the first sentence of a batch waits for others."""

    max_waiting: int = 4096
    """Most sentences that wait; calls that come then are rejected."""

    @property
    def name(self) -> str:
        """Such as `2x1,b32,w5`: streams, threads of each, sentences of a batch, milliseconds of waiting."""
        return f"{self.num_streams}x{self.num_threads},b{self.max_batch_size},w{1000 * self.max_wait_s:g}"

    @classmethod
    def parse(cls, name: str) -> "BatchingSettings":
        """Return the settings of a name; ValueError if it is none."""
        match = _PATTERN.fullmatch(name)
        if match is None or not all(map(int, match.groups()[:3])):
            raise ValueError(f"{name!r}: expected STREAMSxTHREADS,bSENTENCES,wMILLISECONDS, such as 2x1,b32,w5")
        streams, threads, size = map(int, match.groups()[:3])
        wait_s = float(match.group(4)) / 1000
        return cls(num_streams=streams, num_threads=threads, max_batch_size=size, max_wait_s=wait_s)

    def of_system(self, peer: Peer) -> SystemSettings:
        """Return the settings of the system behind."""
        return SystemSettings(
            peer=peer,
            precision=PRECISIONS[peer],
            num_streams=self.num_streams,
            num_threads=self.num_threads,
            batch_size=self.max_batch_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one sentence."""

    output: Output
    queue_s: float
    """From its arrival until its batch began."""
    translate_s: float
    """Of its whole batch."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Waiting:
    source: TokenIds
    arrived_s: float
    answer: "asyncio.Future[Answer]"


class DynamicBatcher:
    """Translates sentences of all callers in batches of the same options; used from one event loop.

    A batch is due when it is full or its first sentence has waited long enough. While no thread is free, it goes on
    growing.
    """

    def __init__(self, translate: Translate, settings: BatchingSettings) -> None:
        """Start as many threads as there are streams."""
        self._translate = translate
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="translating")
        self._free = asyncio.Semaphore(settings.num_streams)
        self._queues: dict[SearchOptions, asyncio.Queue[_Waiting]] = {}
        self._num_waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(self, sources: Sequence[TokenIds], options: SearchOptions) -> list[Answer]:
        """Return the answer to each source, in order; if the awaiting task is cancelled, those that wait are dropped.

        Raises:
            OverloadedError: if not all of them find a place in the queue.
            EngineError: if the batch of one of them failed.
        """
        limit = self._settings.max_waiting
        if self._num_waiting + len(sources) > limit:
            raise OverloadedError(queued=self._num_waiting, limit=limit, unit="sentences", retry_after_s=_RETRY_AFTER_S)
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(source=source, arrived_s=now_s, answer=loop.create_future()) for source in sources]
        if waiting and options not in self._queues:
            self._queues[options] = asyncio.Queue()
            self._spawn(self._collect(options))
        for one in waiting:
            self._queues[options].put_nowait(one)
        self._num_waiting += len(waiting)
        return await asyncio.gather(*(one.answer for one in waiting))

    def close(self) -> None:
        """End the threads once their batches are done."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, options: SearchOptions) -> None:
        """Make batches of one kind of options until none of their sentences waits."""
        queue, size = self._queues[options], self._settings.max_batch_size
        while not queue.empty():
            batch = [queue.get_nowait()]
            waits_s = batch[0].arrived_s + self._settings.max_wait_s - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, waits_s)):
                    while len(batch) < size:
                        batch.append(await queue.get())
            await self._free.acquire()
            while len(batch) < size and not queue.empty():
                batch.append(queue.get_nowait())
            self._num_waiting -= len(batch)
            self._spawn(self._run([one for one in batch if not one.answer.done()], options))
        del self._queues[options]  # callers may choose among any number of options

    async def _run(self, batch: Sequence[_Waiting], options: SearchOptions) -> None:
        """Translate what callers still wait for, and answer them."""
        if not batch:
            self._free.release()
            return
        began_s, sources = time.monotonic(), [one.source for one in batch]
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._translate, sources, options)
        await asyncio.wait([running])
        self._free.release()
        error, translate_s = running.exception(), time.monotonic() - began_s
        if error is not None:
            _LOG.error("a batch of %d sentences failed", len(batch), exc_info=error)
        for place, one in enumerate(batch):
            if one.answer.done():
                continue
            if error is not None:
                one.answer.set_exception(EngineError("translating failed"))
            else:
                queue_s, output = began_s - one.arrived_s, running.result()[place]
                one.answer.set_result(Answer(output=output, queue_s=queue_s, translate_s=translate_s))
