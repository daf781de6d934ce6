"""Dynamic batching over one system: sentences of all callers wait together, batches run in threads."""

import argparse
import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

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

_Options = TypeVar("_Options", bound=Hashable)
_Member = TypeVar("_Member")


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


def settings_flag(text: str) -> BatchingSettings:
    """Parse a flag of a command."""
    try:
        return BatchingSettings.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Collector(Generic[_Options, _Member]):
    """Collects up to so many members of the same options, or for so long; pure.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self, *, max_batch_size: int, max_wait_s: float) -> None:
        """Begin empty.

        Args:
            max_batch_size: most members of a batch; as soon as so many wait, the batch is due.
            max_wait_s: from the arrival of its first member, until a batch is due however small it is.
        """
        self._max_batch_size = max_batch_size
        self._max_wait_s = max_wait_s
        self._waiting: dict[_Options, deque[tuple[float, _Member]]] = {}

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, options: _Options, members: Sequence[_Member], *, now_s: float) -> None:
        """Let members wait; there may be none."""
        if members:
            self._waiting.setdefault(options, deque()).extend((now_s, member) for member in members)

    def take(self, now_s: float) -> tuple[_Options, tuple[_Member, ...]] | None:
        """Remove and return the due batch whose first member came first; None if none is due."""
        due = [options for options, queue in self._waiting.items() if self._due_s(queue) <= now_s]
        if not due:
            return None
        options = min(due, key=lambda options: self._waiting[options][0][0])
        queue = self._waiting[options]
        members = tuple(queue.popleft()[1] for _ in range(min(self._max_batch_size, len(queue))))
        if not queue:
            del self._waiting[options]  # callers may choose among any number of options
        return options, members

    def next_due_s(self) -> float | None:
        """Return when the next batch is due if no member comes; None if none waits."""
        return min(map(self._due_s, self._waiting.values()), default=None)

    def _due_s(self, queue: deque[tuple[float, _Member]]) -> float:
        first_s, _ = queue[0]
        return first_s if len(queue) >= self._max_batch_size else first_s + self._max_wait_s


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
            self._begin(*batch)
        due_s = self._collector.next_due_s()
        if self._num_free and due_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - time.monotonic()), self._dispatch)

    def _begin(self, options: SearchOptions, batch: Sequence[_Waiting]) -> None:
        members = [one for one in batch if not one.answer.done()]  # calls of the others were cancelled
        if not members:
            return
        self._num_free -= 1
        began_s = time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, self._translate, [one.source for one in members], options
        )
        running.add_done_callback(lambda done: self._end(members, began_s, done))

    def _end(self, members: Sequence[_Waiting], began_s: float, done: "asyncio.Future[Sequence[Output]]") -> None:
        """Answer the callers of a batch and let the next one begin."""
        self._num_free += 1
        error, translate_s = done.exception(), time.monotonic() - began_s
        if error is not None:
            _LOG.error("a batch of %d sentences failed", len(members), exc_info=error)
        for place, one in enumerate(members):
            if one.answer.done():
                continue
            if error is not None:
                one.answer.set_exception(EngineError("translating failed"))
            else:
                queue_s = began_s - one.arrived_s
                output = done.result()[place]
                one.answer.set_result(Answer(output=output, queue_s=queue_s, translate_s=translate_s))
        self._dispatch()
