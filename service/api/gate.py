"""Who may come in: the count of calls being answered, its limit, and the refusal while there is one."""

import asyncio
import contextlib
from collections.abc import Iterator

from service.errors import DragomanError, OverloadedError, StartingError

_RETRY_AFTER_S = 1.0


class Gate:
    """Counts the RPCs being answered; refuses new ones while closed or full.

    `grpc.aio`'s own `maximum_concurrent_rpcs` would let callers wait without an answer.
    """

    def __init__(self, *, max_concurrent: int) -> None:
        """Start closed, because the models are not loaded yet."""
        self._max_concurrent = max_concurrent
        self._refusal: DragomanError | None = StartingError()
        self._num_open = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self) -> None:
        """Admit RPCs from now on."""
        self._refusal = None

    def close(self, refusal: DragomanError) -> None:
        """Refuse new RPCs with this error; those inside go on."""
        self._refusal = refusal

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold a place while an RPC is answered.

        Raises:
            OverloadedError: if every place is taken.
            DragomanError: the refusal, if closed.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._num_open >= self._max_concurrent:
            raise OverloadedError(
                queued=self._num_open, limit=self._max_concurrent, unit="requests", retry_after_s=_RETRY_AFTER_S
            )
        self._num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._is_idle.set()

    async def wait_until_idle(self) -> None:
        """Return once no RPC is being answered."""
        await self._is_idle.wait()
