"""Who may come in: the count of calls being answered, its limit, and the refusal while there is one."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from service.errors import DragomanError, OverloadedError, StartingError

_UNKNOWN_STAY_S = 1.0  # before any call has ended
_STAY_MEMORY = 32  # calls after which a past one counts e times less
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0


class Gate:
    """Counts the RPCs being answered; refuses new ones while closed or full.

    `grpc.aio`'s own `maximum_concurrent_rpcs` would let callers wait without an answer.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, because the models are not loaded yet."""
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._mean_stay_s: float | None = None
        self._refusal: DragomanError | None = StartingError()
        self._num_open = 0
        self._is_closed = asyncio.Event()
        self._is_closed.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self) -> None:
        """Admit RPCs from now on."""
        self._refusal = None
        self._is_closed.clear()

    def close(self, refusal: DragomanError) -> None:
        """Refuse new RPCs with this error; those inside go on."""
        self._refusal = refusal
        self._is_closed.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold a place while an RPC is answered.

        Raises:
            OverloadedError: if every place is taken; to come back after the time that calls take of late, within
                sensible limits: by then the places have changed hands.
            DragomanError: the refusal, if closed.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._num_open >= self._max_concurrent:
            raise OverloadedError(
                queued=self._num_open, limit=self._max_concurrent, unit="requests", retry_after_s=self._retry_after_s()
            )
        began_s = self._clock()
        self._num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            self._learn_stay(self._clock() - began_s)
            if self._num_open == 0:
                self._is_idle.set()

    async def wait_until_idle(self) -> None:
        """Return once no RPC is being answered."""
        await self._is_idle.wait()

    async def wait_until_closed(self) -> DragomanError:
        """Return the refusal once new RPCs are refused."""
        while self._refusal is None:
            await self._is_closed.wait()
        return self._refusal

    def _learn_stay(self, stay_s: float) -> None:
        if self._mean_stay_s is None:
            self._mean_stay_s = stay_s
        else:
            self._mean_stay_s += (stay_s - self._mean_stay_s) / _STAY_MEMORY

    def _retry_after_s(self) -> float:
        stay_s = _UNKNOWN_STAY_S if self._mean_stay_s is None else self._mean_stay_s
        return min(max(stay_s, _MIN_RETRY_S), _MAX_RETRY_S)
