"""Several engines of one version of a model, each on a device of its own: who gets a request."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.batch_policy import Core
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.worker.messages import Clock

_Result = TypeVar("_Result")
_Core = TypeVar("_Core", bound=Core)
_AVOIDED_S: Final = 10.0
"""For so long an engine that lost its decoding process gets nothing that another can take: being empty, it would be the
least loaded, and fail one request after the other."""


def open_others(first: _Core, others: Sequence[Callable[[], _Core]]) -> list[_Core]:
    """Open more cores at the same time; return all, or close all and raise what kept one from being opened."""
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="loading") as pool:
        opening = [pool.submit(other) for other in others]
    opened = [first, *(future.result() for future in opening if not future.exception())]
    if len(opened) <= len(others):
        for core in opened:
            core.close(0.0)
    return [first, *(future.result() for future in opening)]


class ReplicaScheduler:
    """Engines with the same network; a request goes as a whole to the one that has the least work left.

    Each has a queue, a forecast and batches of its own, so a device that is slow or gone delays no other.
    """

    def __init__(self, engines: Sequence[Scheduler], clock: Clock = time.monotonic) -> None:
        """Take over engines, at least one, that are neither warm nor started."""
        self._engines, self._clock = engines, clock

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Let all warm up at the same time; return the results of the first. Raises as `Scheduler.warm_up`."""
        return self._all(lambda engine: engine.warm_up(segments))[0]

    def start(self) -> None:
        """Begin to decode."""
        for engine in self._engines:
            engine.start()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request that the least loaded engine would most likely reject; raises as `submit`."""
        self._least_loaded().reject_early(num_characters, search, context)

    def expected_work(self, segments: Sequence[Segment]) -> int:
        """Return how many work tokens segments are expected to need."""
        return self._least_loaded().expected_work(segments)

    def submit(
        self, segments: Sequence[Segment], context: RequestContext | None = None, *, num_characters: int = 0
    ) -> Sequence[Future[SegmentResult]]:
        """Admit all segments of a request to the least loaded engine, or none; as `Scheduler.submit`."""
        return self._least_loaded().submit(segments, context, num_characters=num_characters)

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until all are answered; return False if time ran out first."""
        return all(self._all(lambda engine: engine.drain(timeout_s)))

    def stop(self) -> None:
        """Answer all that is left with `DrainingError` and end the threads of all engines."""
        self._all(Scheduler.stop)

    def _least_loaded(self) -> Scheduler:
        now_s = self._clock()
        return min(
            self._engines, key=lambda engine: (now_s - engine.abandoned_at_s < _AVOIDED_S, engine.unanswered_work)
        )

    def _all(self, act: Callable[[Scheduler], _Result]) -> list[_Result]:
        with ThreadPoolExecutor(len(self._engines), thread_name_prefix="engines") as pool:
            return list(pool.map(act, self._engines))
