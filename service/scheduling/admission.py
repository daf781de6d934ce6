"""The bounded queue: all-or-nothing admission, priorities, deadlines, and when to come back if it is full."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import chain, islice

from service.datatypes import Priority, Segment, SegmentResult
from service.errors import DragomanError, OverloadedError

_RATE_MEMORY_S = 10.0  # busy seconds after which a past rate counts e times less
_UNKNOWN_RETRY_S = 1.0  # before anything has been answered
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingSegment:
    """An admitted segment and the place where its one answer goes; equal only to itself."""

    segment: Segment
    priority: Priority
    admitted_at_s: float
    deadline_s: float
    """On the scheduler's clock."""

    future: "Future[SegmentResult]" = field(default_factory=Future)
    """Stays pending until answered, so that its owner can cancel it at any time."""

    @property
    def num_source_tokens(self) -> int:
        """EOS counted."""
        return len(self.segment.source_ids)

    def answer(self, result: SegmentResult) -> bool:
        """Give the result; return False if the segment was answered or cancelled before."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: DragomanError) -> bool:
        """Give an error instead; return False if the segment was answered or cancelled before."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True


class ServiceRate:
    """Source tokens answered per second of work of one decoding thread, of late.

    Idle time does not count, so a quiet night does not make the server look slow in the morning.
    """

    def __init__(self, *, num_threads: int) -> None:
        self._num_threads = num_threads
        self._num_tokens = 0.0
        self._busy_s = 0.0

    def record(self, *, num_tokens: int, busy_s: float) -> None:
        """Add what one thread answered in a stretch of work."""
        decay = math.exp(-busy_s / _RATE_MEMORY_S)
        self._num_tokens = self._num_tokens * decay + num_tokens
        self._busy_s = self._busy_s * decay + busy_s

    def retry_after_s(self, *, backlog_tokens: int) -> float:
        """Seconds all threads need for a backlog, within sensible limits."""
        if not self._num_tokens or not self._busy_s:
            return _UNKNOWN_RETRY_S
        expected_s = backlog_tokens * self._busy_s / (self._num_tokens * self._num_threads)
        return min(max(expected_s, _MIN_RETRY_S), _MAX_RETRY_S)


class AdmissionQueue:
    """Segments that wait, in two lanes; not thread-safe: the scheduler guards it.

    Interactive segments are served before bulk ones, each lane in order of admission. A bulk segment that has waited
    longer than `bulk_patience_s` is next, so bulk work progresses under any interactive load.
    """

    def __init__(self, *, max_segments: int, max_tokens: int, bulk_patience_s: float) -> None:
        self._max_segments = max_segments
        self._max_tokens = max_tokens
        self._bulk_patience_s = bulk_patience_s
        # Dictionaries as ordered sets: first in, first out, and anyone may leave.
        self._lanes: dict[Priority, dict[PendingSegment, None]] = {priority: {} for priority in Priority}
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

    def admit(self, group: Sequence[PendingSegment], *, rate: ServiceRate) -> None:
        """Take all segments of a request, or none.

        Raises:
            OverloadedError: if they do not all find a place.
        """
        group_tokens = sum(pending.num_source_tokens for pending in group)
        for queued, added, limit, unit in (
            (self.num_segments, len(group), self._max_segments, "segments"),
            (self._num_tokens, group_tokens, self._max_tokens, "tokens"),
        ):
            if queued + added > limit:
                retry_after_s = rate.retry_after_s(backlog_tokens=self._num_tokens)
                raise OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_after_s)
        for pending in group:
            self._lanes[pending.priority][pending] = None
            self._next_deadline_s = min(self._next_deadline_s, pending.deadline_s)
        self._num_tokens += group_tokens

    def remove(self, pending: PendingSegment) -> None:
        """Free the place of a segment, if it still waits."""
        lane = self._lanes[pending.priority]
        if pending in lane:
            del lane[pending]
            self._num_tokens -= pending.num_source_tokens

    def pop_expired(self, now_s: float) -> list[PendingSegment]:
        """Remove and return the segments whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return []
        expired = [pending for pending in self._all() if pending.deadline_s <= now_s]
        for pending in expired:
            self.remove(pending)
        self._next_deadline_s = min((pending.deadline_s for pending in self._all()), default=math.inf)
        return expired

    def peek(self, now_s: float, *, limit: int) -> list[PendingSegment]:
        """Return the next segments in the order they should be served, without removing them."""
        first = list(islice(self._all(), limit))
        oldest_bulk = next(iter(self._lanes[Priority.BULK]), None)
        if oldest_bulk is not None and now_s - oldest_bulk.admitted_at_s > self._bulk_patience_s:
            first = [oldest_bulk, *(pending for pending in first if pending is not oldest_bulk)][:limit]
        return first

    def _all(self) -> Iterator[PendingSegment]:
        return chain(self._lanes[Priority.INTERACTIVE], self._lanes[Priority.BULK])
