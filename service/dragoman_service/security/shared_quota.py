"""Quotas shared by replicas in a store, with a fallback to the quotas of each replica."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.rate_limits import Charge, RateLimiter
from dragoman_service.threads import retrieve_exception

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

RETRY_INTERVAL_S = 1.0
"""While the store is unavailable, one call tries it again at this interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A charge that its bucket cannot cover."""

    charge: Charge
    retry_after_s: float


class BucketStore(Protocol):
    """Holds the buckets of all replicas; any error means that the store is unavailable."""

    async def take(self, charges: Sequence[Charge]) -> Shortfall | None:
        """Take all charges, or none and return the first charge that its bucket cannot cover."""

    async def refund(self, charges: Sequence[Charge]) -> None:
        """Return the amounts of charges to their buckets."""

    async def watch(self, interval_s: float) -> None:
        """Reload changed settings of the store at this interval; never returns."""

    async def close(self) -> None:
        """Close the connections."""


class SharedQuota:
    """Charges the store for requests that the limiter of this replica has admitted; for one event loop.

    A charge that exceeds the buckets of one replica also exceeds those of the store. So rejected callers put no load on
    the store, and each replica enforces its own quotas while the store is unavailable.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        store: BucketStore,
        metrics: Metrics,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A store that does not respond within `timeout_s` counts as unavailable."""
        self._limiter = limiter
        self._store = store
        self._checks = metrics.quota_checks
        self._timeout_s = timeout_s
        self._clock = clock
        self._is_unavailable = False
        self._retry_at_s = -math.inf
        self._tasks: set[asyncio.Task[Any]] = set()

    async def confirm(self, charges: Sequence[Charge]) -> Callable[[], None]:
        """Charge the store if it is available, and return the function that refunds limiter and store.

        Raises:
            RateLimitedError: if a bucket of the store cannot cover its charge; the limiter is then refunded.
        """
        has_responded, shortfall = await self._call(self._store.take, charges)
        self._checks.labels("store" if has_responded else "local").inc()
        if shortfall is not None:
            self._limiter.refund(charges)
            raise shortfall.charge.to_error(shortfall.retry_after_s)

        def refund() -> None:
            self._limiter.refund(charges)
            if has_responded:
                self._start(self._call(self._store.refund, charges))

        return refund

    async def watch(self, interval_s: float) -> None:
        """Reload changed settings of the store; never returns."""
        await self._store.watch(interval_s)

    async def close(self) -> None:
        """Close the connections after all refunds."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._store.close()

    def _start(self, work: Coroutine[Any, Any, _Answer]) -> "asyncio.Task[_Answer]":
        """Start a task that continues if the waiting call is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve_exception)
        return task

    async def _call(
        self, operation: Callable[[Sequence[Charge]], Coroutine[Any, Any, _Answer]], charges: Sequence[Charge]
    ) -> tuple[bool, _Answer | None]:
        """Return whether the store responded, and its response.

        The operation is a task of its own: a cancelled call does not close a connection, and the timeout holds although
        `asyncio.wait_for`, which redis-py uses, can lose a cancellation before Python 3.12.
        """
        is_retry = self._is_unavailable
        if is_retry:
            if self._clock() < self._retry_at_s:
                return False, None
            self._retry_at_s = self._clock() + RETRY_INTERVAL_S
        task = self._start(operation(charges))
        await asyncio.wait((task,), timeout=self._timeout_s)
        if not task.done():
            task.cancel()
            self._record_failure(TimeoutError(f"no response within {self._timeout_s:g} s"))
            return False, None
        try:
            answer = task.result()
        except Exception as error:  # noqa: BLE001 - any error means that the store is unavailable
            self._record_failure(error)
            return False, None
        if is_retry:
            self._is_unavailable = False
            log.info("quota store recovered")
        return True, answer

    def _record_failure(self, error: Exception) -> None:
        self._retry_at_s = self._clock() + RETRY_INTERVAL_S
        if not self._is_unavailable:
            self._is_unavailable = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("quota store unavailable, falling back to local limits", extra={"reason": reason})
