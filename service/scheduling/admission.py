"""The bounded queue: all-or-nothing admission, priorities, fair turns, deadlines, and when to come back if full."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from service.datatypes import Priority
from service.errors import OverloadedError
from service.scheduling.fairness import FairLane
from service.scheduling.forecast import Backlog, Demand, Forecast
from service.scheduling.pending import PendingSegment


class AdmissionQueue:
    """Segments that wait, in two lanes; not thread-safe: the scheduler guards it.

    Interactive segments are served before bulk ones; in each lane callers take turns. While any bulk segment has waited
    longer than `bulk_patience_s`, the next one of the bulk lane is next of all at every look at the queue, so bulk work
    progresses under any interactive load. It is the one whose turn it is, not the oldest: patience must not let a
    caller with much bulk work go before one with little.

    Bounds: segments; expected work, which only a request that finds nothing waiting may exceed; and for the segments
    and the work of one caller a share of both, which only a request may exceed whose caller has nothing waiting. The
    share keeps room for others. Segments without a caller come from the process itself and are not counted by it.
    """

    def __init__(
        self, *, max_segments: int, max_work: int, bulk_patience_s: float, max_caller_share: float = 1.0
    ) -> None:
        self._max_segments = max_segments
        self._max_work = max_work
        self._max_caller_share = max_caller_share
        self._bulk_patience_s = bulk_patience_s
        self._lanes = {priority: FairLane() for priority in Priority}
        self._num_tokens = 0
        self._next_deadline_s = math.inf  # no deadline is earlier; may be one of a segment that has left

    @property
    def num_segments(self) -> int:
        """Segments that wait."""
        return sum(map(len, self._lanes.values()))

    @property
    def num_tokens(self) -> int:
        """Source tokens that wait."""
        return self._num_tokens

    @property
    def work(self) -> int:
        """Expected work tokens of what waits."""
        return sum(lane.work for lane in self._lanes.values())

    def admit(self, group: Sequence[PendingSegment], *, forecast: Forecast) -> None:
        """Take all segments of a request, or none.

        Raises:
            OverloadedError: if they do not all find a place.
        """
        if group:
            work = sum(pending.work for pending in group)
            self.check_room(num_segments=len(group), work=work, caller=group[0].caller, forecast=forecast)
        for pending in group:
            self._lanes[pending.priority].add(pending)
            self._num_tokens += pending.num_source_tokens
            self._next_deadline_s = min(self._next_deadline_s, pending.deadline_s)

    def check_room(self, *, num_segments: int, work: int, caller: str, forecast: Forecast) -> None:
        """Do nothing if a request of so many segments and so much work finds a place.

        Raises:
            OverloadedError: if it does not.
        """
        self._check_bounds(num_segments, work, forecast)
        self._check_share(num_segments, work, caller, forecast)

    def backlog(self, demand: Demand, *, priority: Priority, caller: str, num_running: int) -> Backlog:
        """Return what is served before the last segment of a request that is not admitted yet.

        Takes as long as there are callers who wait, however many segments they have.
        """
        lane = self._lanes[priority]
        work = lane.work_before(caller, demand.work)
        if priority is Priority.BULK:
            work += self._lanes[Priority.INTERACTIVE].work
        num_waiting = round(work * self.num_segments / self.work) if self.num_segments else 0
        return Backlog(num_waiting=num_waiting, work=work, num_running=num_running)

    def serve(self, pending: PendingSegment) -> None:
        """Take out a segment that waits, to be decoded."""
        self._lanes[pending.priority].serve(pending)
        self._num_tokens -= pending.num_source_tokens

    def drop(self, pending: PendingSegment) -> bool:
        """Free the place of a segment that nobody waits for any more; return False if it does not wait here."""
        is_here = self._lanes[pending.priority].drop(pending)
        if is_here:
            self._num_tokens -= pending.num_source_tokens
        return is_here

    def pop_expired(self, now_s: float) -> list[PendingSegment]:
        """Remove and return the segments whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return []
        expired = [pending for pending in self._all() if pending.deadline_s <= now_s]
        for pending in expired:
            self.drop(pending)
        self._next_deadline_s = min((pending.deadline_s for pending in self._all()), default=math.inf)
        return expired

    def peek(self, now_s: float, *, limit: int) -> list[PendingSegment]:
        """Return the next segments in the order they should be served, without removing them."""
        interactive = self._lanes[Priority.INTERACTIVE].peek(limit)
        is_bulk_due = self._is_bulk_due(now_s)
        bulk = self._lanes[Priority.BULK].peek(max(int(is_bulk_due), limit - len(interactive)))
        if is_bulk_due:
            return [bulk[0], *interactive, *bulk[1:]][:limit]
        return interactive + bulk

    def _is_bulk_due(self, now_s: float) -> bool:
        oldest = self._lanes[Priority.BULK].oldest
        return oldest is not None and now_s - oldest.admitted_at_s > self._bulk_patience_s

    def _check_bounds(self, num_added: int, work_added: int, forecast: Forecast) -> None:
        queued, limit = self.num_segments, self._max_segments
        if (excess := queued + num_added - limit) > 0:
            retry_after_s = self._retry_after_s(self._work_of(excess), forecast)
            raise OverloadedError(queued=queued, limit=limit, unit="segments", retry_after_s=retry_after_s)
        work, limit = self.work, self._max_work
        if queued and (excess := work + work_added - limit) > 0:
            retry_after_s = self._retry_after_s(excess, forecast)
            raise OverloadedError(queued=work, limit=limit, unit="work tokens", retry_after_s=retry_after_s)

    def _check_share(self, num_added: int, work_added: int, caller: str, forecast: Forecast) -> None:
        queued, work = map(sum, zip(*(lane.held_by(caller) for lane in self._lanes.values()), strict=True))
        if not caller or not queued:
            return
        limit = math.floor(self._max_segments * self._max_caller_share)
        if (excess := queued + num_added - limit) > 0:
            retry_after_s = self._retry_after_s(self._work_of(excess) * self._num_callers, forecast)
            unit = "segments of this caller"
            raise OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_after_s)
        limit = math.floor(self._max_work * self._max_caller_share)
        if (excess := work + work_added - limit) > 0:
            retry_after_s = self._retry_after_s(excess * self._num_callers, forecast)
            unit = "work tokens of this caller"
            raise OverloadedError(queued=work, limit=limit, unit=unit, retry_after_s=retry_after_s)

    @property
    def _num_callers(self) -> int:
        """Callers that take turns with any of them."""
        return max(lane.num_callers for lane in self._lanes.values())

    def _retry_after_s(self, excess: int, forecast: Forecast) -> float:
        """Return the time after which so much of the work that waits is done."""
        return forecast.retry_after_s(excess_s=forecast.working_off_s(min(excess, self.work)))

    def _work_of(self, num_segments: int) -> int:
        """Return the work of so many segments as they wait here, on average."""
        return math.ceil(num_segments * self.work / max(1, self.num_segments))

    def _all(self) -> Iterator[PendingSegment]:
        return chain(*self._lanes.values())
