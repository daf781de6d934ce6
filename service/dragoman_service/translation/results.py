"""Results of the queued segments of a request."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dragoman_service.datatypes import SegmentResult
from dragoman_service.errors import EngineError
from dragoman_service.models.model import Futures


async def wait_all(futures: Futures) -> None:
    """Return once all futures are done, or one has failed. Wakes the event loop at most once."""
    if not futures:
        return
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    all_done, num_futures, num_done = loop.create_future(), len(futures), itertools.count(1)

    def finish() -> None:
        if not all_done.done():
            all_done.set_result(None)

    def count_done(future: "Future[SegmentResult]") -> None:
        if next(num_done) == num_futures or (not future.cancelled() and future.exception()):
            if threading.get_ident() == thread_id:
                finish()
            else:
                loop.call_soon_threadsafe(finish)

    for future in futures:
        future.add_done_callback(count_done)
    await all_done


def results_of(futures: "Futures | Sequence[asyncio.Future[SegmentResult]]") -> list[SegmentResult]:
    """Return the results, or raise the first error. All futures must be done, unless one has failed."""
    for error in map(error_of, futures):
        if error is not None:
            raise error
    if any(future.cancelled() for future in futures):  # the caller would have cancelled this task as well
        raise EngineError("segment cancelled without a result")
    return [future.result() for future in futures]


def error_of(future: "asyncio.Future[Any] | Future[SegmentResult]") -> BaseException | None:
    """Return the error of a future; None if it has none, is cancelled or not done."""
    return future.exception() if future.done() and not future.cancelled() else None
