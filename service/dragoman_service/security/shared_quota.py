"""Quotas that replicas share: a store decides, and where it does not answer in time, each replica for itself."""

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
"""After this time without the store, one call asks it again while the others go on without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a bucket has not enough of."""

    charge: Charge
    wait_s: float
    """In how many seconds to try again."""


class BucketStore(Protocol):
    """Keeps the same buckets as `RateLimiter`, for all replicas; any error means that it cannot be asked now."""

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        """Take all of the charges, or none and return the first that there is not enough for."""

    async def give_back(self, charges: Sequence[Charge]) -> None:
        """Put back what was taken for nothing."""

    async def watch(self, interval_s: float) -> None:
        """Look at this interval whether its settings have changed; never returns."""

    async def close(self) -> None:
        """Close its connections."""


class SharedQuota:
    """Takes from the buckets of a store what those of this replica have given; to be used in one event loop.

    What one replica refuses, all together would refuse too. So a caller who asks for far too much is no load for the
    store, and nobody gets more than each replica allows while the store comes and goes.
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
        """Ask nothing yet; an answer that takes longer than `timeout_s` is none."""
        self._limiter = limiter
        self._store = store
        self._checks = metrics.quota_checks
        self._timeout_s = timeout_s
        self._clock = clock
        self._is_away = False
        self._retry_at_s = -math.inf
        self._tasks: set[asyncio.Task[Any]] = set()

    async def confirm(self, charges: Sequence[Charge]) -> Callable[[], None]:
        """Charge the store too, unless it is away, for what the limiter was; return what gives all of it back.

        Raises:
            RateLimitedError: if the store has not enough; the limiter has everything back then.
        """
        has_answered, refusal = await self._asked(self._store.take, charges)
        self._checks.labels("store" if has_answered else "local").inc()
        if refusal is not None:
            self._limiter.give_back(charges)
            raise refusal.charge.refused(refusal.wait_s)

        def give_back() -> None:
            self._limiter.give_back(charges)
            if has_answered:
                self._begun(self._asked(self._store.give_back, charges))  # nobody waits for it

        return give_back

    async def watch(self, interval_s: float) -> None:
        """Follow changes of the store's settings; never returns."""
        await self._store.watch(interval_s)

    async def close(self) -> None:
        """Close the connections once what is to be given back is."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._store.close()

    def _begun(self, work: Coroutine[Any, Any, _Answer]) -> "asyncio.Task[_Answer]":
        """Begin what goes on even if the call that waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve_exception)
        return task

    async def _asked(
        self, ask: Callable[[Sequence[Charge]], Coroutine[Any, Any, _Answer]], charges: Sequence[Charge]
    ) -> tuple[bool, _Answer | None]:
        """Return whether the store has answered, and what.

        The question is a task of its own. So no caller who comes and goes costs a connection, and the time is kept
        even where a cancellation is lost, as `asyncio.wait_for`, which redis-py uses, does before Python 3.12.
        """
        is_retry = self._is_away
        if is_retry:
            if self._clock() < self._retry_at_s:
                return False, None
            self._retry_at_s = self._clock() + RETRY_INTERVAL_S
        asking = self._begun(ask(charges))
        await asyncio.wait((asking,), timeout=self._timeout_s)
        if not asking.done():
            asking.cancel()
            self._lost(TimeoutError(f"no answer within {self._timeout_s:g} s"))
            return False, None
        try:
            answer = asking.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, the buckets of this replica decide
            self._lost(error)
            return False, None
        if is_retry:
            self._is_away = False
            log.info("the quota store answers again")
        return True, answer

    def _lost(self, error: Exception) -> None:
        self._retry_at_s = self._clock() + RETRY_INTERVAL_S
        if not self._is_away:
            self._is_away = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("the quota store does not answer; limits hold for this replica", extra={"reason": reason})
