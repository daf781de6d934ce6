"""Several replicas of one model version, each on a device of its own: load balancing between their schedulers."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.batch_connection import WorkerHandle
from dragoman_service.scheduling.scheduler import Futures, Scheduler
from dragoman_service.worker.messages import Clock

_Result = TypeVar("_Result")
_Worker = TypeVar("_Worker", bound=WorkerHandle)

_QUARANTINE_S: Final = 10.0
"""A replica that has lost its worker gets no requests for this time if another replica can take them: being empty, it
would be the least loaded and fail one request after the other."""


def open_replicas(first: _Worker, others: Sequence[Callable[[], _Worker]]) -> list[_Worker]:
    """Open the other workers in parallel; return all workers, or close all and raise the first error."""
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="loading") as pool:
        opening = [pool.submit(other) for other in others]
    opened = [first, *(future.result() for future in opening if not future.exception())]
    if len(opened) <= len(others):
        for worker in opened:
            worker.close(0.0)
    return [first, *(future.result() for future in opening)]


class ReplicaScheduler:
    """Sends each request as a whole to the replica with the least outstanding decode cost.

    Each replica has a queue, a latency model and batches of its own, so a slow or lost device delays no other.
    """

    def __init__(self, replicas: Sequence[Scheduler], clock: Clock = time.monotonic) -> None:
        """Take over replicas, at least one, that are neither warmed up nor started."""
        self._replicas, self._clock = replicas, clock

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Warm up all replicas in parallel; return the results of the first one. Raises as `Scheduler.warm_up`."""
        return self._on_each(lambda replica: replica.warm_up(segments))[0]

    def start(self) -> None:
        """Start to decode."""
        for replica in self._replicas:
            replica.start()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request that the least loaded replica would most likely reject; raises as `submit`."""
        self._least_loaded().reject_early(num_characters, search, context)

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        """Return the expected decode cost of segments."""
        return self._least_loaded().expected_decode_cost(segments)

    def submit(
        self, segments: Sequence[Segment], context: RequestContext | None = None, *, num_characters: int = 0
    ) -> Futures:
        """Submit a request to the least loaded replica; as `Scheduler.submit`."""
        return self._least_loaded().submit(segments, context, num_characters=num_characters)

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until all are resolved; return False on timeout."""
        return all(self._on_each(lambda replica: replica.drain(timeout_s)))

    def stop(self) -> None:
        """Stop all replicas in parallel."""
        self._on_each(Scheduler.stop)

    def _least_loaded(self) -> Scheduler:
        now_s = self._clock()
        return min(
            self._replicas,
            key=lambda replica: (now_s - replica.failed_at_s < _QUARANTINE_S, replica.outstanding_cost),
        )

    def _on_each(self, action: Callable[[Scheduler], _Result]) -> list[_Result]:
        with ThreadPoolExecutor(len(self._replicas), thread_name_prefix="replicas") as pool:
            return list(pool.map(action, self._replicas))
