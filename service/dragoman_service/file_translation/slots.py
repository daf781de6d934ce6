"""Fair choice of the next document to translate."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator


class FairSlots:
    """Semaphore that admits callers with the fewest running documents first, then the oldest documents."""

    def __init__(self, *, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._running: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def taken(self, caller: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        may_run = asyncio.get_running_loop().create_future()
        waiting = (caller, may_run)
        self._waiting.append(waiting)
        self._admit()
        try:
            await may_run
            yield
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._running[caller] -= 1
            self._admit()

    def _admit(self) -> None:
        while self._running.total() < self._total:
            free = [
                waiting
                for waiting in self._waiting
                if self._running[waiting[0]] < self._per_caller and not waiting[1].cancelled()
            ]
            if not free:
                return
            admitted = min(free, key=lambda waiting: self._running[waiting[0]])  # the first of equals is the oldest
            self._waiting.remove(admitted)
            self._running += Counter([admitted[0]])
            admitted[1].set_result(None)
