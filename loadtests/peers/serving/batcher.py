"""Dynamic batching over one system: sentences of all callers wait together, batches run in threads."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from loadtests.peers.serving.collector import Batch, Collector
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import Output, SearchOptions, TokenIds
from service.errors import EngineError, OverloadedError

_LOG = logging.getLogger(__name__)

Translate = Callable[[Sequence[TokenIds], SearchOptions], Sequence[Output]]
"""Returns the best hypothesis of each source of a batch, in order; called by several threads at once."""

_RETRY_AFTER_S = 1.0
"""What a caller is told who finds the queue full."""


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
    """Translates sentences of all callers in batches; used from one event loop.

    A batch is put together when a thread is free for it, not before: as long as all are busy, it goes on growing.
    """

    def __init__(self, translate: Translate, settings: BatchingSettings) -> None:
        """Start as many threads as there are streams."""
        self._translate = translate
        self._max_waiting = settings.max_waiting
        self._collector: Collector[SearchOptions, _Waiting] = Collector(
            max_batch_size=settings.max_batch_size, max_wait_s=settings.max_wait_s
        )
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="translating")
        self._num_free = settings.num_streams
        self._timer: asyncio.TimerHandle | None = None

    async def translate(self, sources: Sequence[TokenIds], options: SearchOptions) -> list[Answer]:
        """Return the answer to each source, in order; if the awaiting task is cancelled, those that wait are dropped.

        Raises:
            OverloadedError: if not all of them find a place in the queue.
            EngineError: if the batch of one of them failed.
        """
        if len(self._collector) + len(sources) > self._max_waiting:
            raise OverloadedError(
                queued=len(self._collector), limit=self._max_waiting, unit="sentences", retry_after_s=_RETRY_AFTER_S
            )
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(source=source, arrived_s=now_s, answer=loop.create_future()) for source in sources]
        self._collector.add(options, waiting, now_s=now_s)
        self._dispatch()
        return await asyncio.gather(*(one.answer for one in waiting))

    def close(self) -> None:
        """End the threads once their batches are done."""
        if self._timer is not None:
            self._timer.cancel()
        self._threads.shutdown()

    def _dispatch(self) -> None:
        """Begin what is due, as far as threads are free; if one is left over, look again when something is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._num_free and (batch := self._collector.take(time.monotonic())) is not None:
            self._begin(batch)
        due_s = self._collector.next_due_s()
        if self._num_free and due_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - time.monotonic()), self._dispatch)

    def _begin(self, batch: Batch[SearchOptions, _Waiting]) -> None:
        members = [one for one in batch.members if not one.answer.done()]  # the others' callers have left
        if not members:
            return
        self._num_free -= 1
        began_s = time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, self._translate, [one.source for one in members], batch.options
        )
        running.add_done_callback(lambda done: self._end(members, began_s, done))

    def _end(self, members: Sequence[_Waiting], began_s: float, done: "asyncio.Future[Sequence[Output]]") -> None:
        """Answer the callers of a batch and let the next one begin."""
        self._num_free += 1
        asking = [(place, one) for place, one in enumerate(members) if not one.answer.done()]
        error = done.exception()
        if error is not None:
            _LOG.error("a batch of %d sentences failed", len(members), exc_info=error)
            for _, one in asking:
                one.answer.set_exception(EngineError("translating failed"))
        else:
            outputs, translate_s = done.result(), time.monotonic() - began_s
            for place, one in asking:
                queue_s = began_s - one.arrived_s
                one.answer.set_result(Answer(output=outputs[place], queue_s=queue_s, translate_s=translate_s))
        self._dispatch()
