"""The bounded queue: all-or-nothing admission, priorities, fair turns, deadlines, and when to come back if full."""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import chain, count, islice

from service.datatypes import Priority, Segment, SegmentResult
from service.engine.forecast import Backlog, Demand, Forecast
from service.errors import DragomanError, OverloadedError


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class PendingSegment:
    """An admitted segment and the place where its one answer goes; equal only to itself."""

    segment: Segment
    priority: Priority
    caller: str = ""
    """Name of who asked; empty for what the process asks itself."""

    work: int = 1
    """Expected work tokens, see `service.engine.forecast`; at least 1."""

    admitted_at_s: float
    deadline_s: float
    """On the scheduler's clock."""

    exemplar: dict[str, str] | None = None
    """Leads from observations of its times to its trace."""

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


_MIN_SWEEP = 64


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    """A caller who has something waiting."""

    turn_at: int
    """On the clock of the lane: the work that the caller was served, and where it began. The least is next."""

    order: int
    """Decides among equals: who had its turn last comes last."""

    waiting: dict[PendingSegment, None] = field(default_factory=dict)
    """An ordered set: first in, first out, and anyone may leave."""

    work: int = 0
    """Of what waits."""

    @property
    def key(self) -> tuple[int, int]:
        return self.turn_at, self.order


class FairLane:
    """Segments of one priority that wait; callers take turns, each caller's segments go first in, first out.

    Start-time fair queueing (Goyal et al. 1996, "Start-time Fair Queueing") with one flow for each caller: the next
    segment is that of the caller who was served least work. A caller who comes back begins where the others are, or
    where it was if that is later, so neither a pause nor a cancelled request changes what anybody is due. Of two
    callers with segments waiting all the time, neither is served more than the other by more work than that of one
    segment of each.
    """

    def __init__(self) -> None:
        self._waiting: dict[PendingSegment, None] = {}  # in order of admission
        self._callers: dict[str, _Caller] = {}
        self._turns: list[tuple[tuple[int, int], _Caller]] = []  # sorted; no two keys are equal
        self._left_at: dict[str, int] = {}  # turns of callers with nothing waiting, if those might be in the future
        self._sweep_at = _MIN_SWEEP
        self._num_turns = 0
        self._work = 0

    def __len__(self) -> int:
        """Segments that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingSegment]:
        """All that waits, in order of admission."""
        return iter(self._waiting)

    @property
    def work(self) -> int:
        """Work of all that waits."""
        return self._work

    @property
    def num_callers(self) -> int:
        """Callers who have something waiting."""
        return len(self._callers)

    @property
    def oldest(self) -> PendingSegment | None:
        """What was admitted first."""
        return next(iter(self._waiting), None)

    def held_by(self, caller: str) -> tuple[int, int]:
        """Return segments and work that a caller has waiting."""
        found = self._callers.get(caller)
        return (len(found.waiting), found.work) if found else (0, 0)

    def add(self, pending: PendingSegment) -> None:
        """Let a segment wait."""
        caller = self._callers.get(pending.caller)
        if caller is None:
            caller = _Caller(turn_at=self._next_turn_of(pending.caller), order=self._next_order())
            self._left_at.pop(pending.caller, None)
            self._callers[pending.caller] = caller
            insort(self._turns, (caller.key, caller))
        caller.waiting[pending] = None
        caller.work += pending.work
        self._waiting[pending] = None
        self._work += pending.work

    def serve(self, pending: PendingSegment) -> None:
        """Take out a segment to be decoded; its caller's next turn is later by its work."""
        caller = self._callers[pending.caller]
        self._take_out(caller, pending)
        del self._turns[bisect_left(self._turns, (caller.key,))]
        caller.turn_at += pending.work
        caller.order = self._next_order()
        insort(self._turns, (caller.key, caller))
        self._dismiss_if_done(pending.caller)

    def drop(self, pending: PendingSegment) -> bool:
        """Take out a segment that nobody waits for any more; return False if it does not wait here."""
        if pending not in self._waiting:
            return False
        self._take_out(self._callers[pending.caller], pending)
        self._dismiss_if_done(pending.caller)
        return True

    def peek(self, limit: int) -> list[PendingSegment]:
        """Return the next segments in the order in which they have their turns."""
        found: list[PendingSegment] = []
        order = count(self._num_turns)
        heap = [(key, iter(caller.waiting)) for key, caller in islice(self._turns, limit)]  # sorted, so it is a heap
        while heap and len(found) < limit:
            (turn_at, _), waiting = heap[0]
            pending = next(waiting, None)
            if pending is None:
                heapq.heappop(heap)
            else:
                found.append(pending)
                heapq.heapreplace(heap, ((turn_at + pending.work, next(order)), waiting))
        return found

    def work_before(self, caller: str, work: int) -> int:
        """Return the work that is served before so much more of a caller, its own included if it waits already."""
        known = self._callers.get(caller)
        last_turn_at = self._next_turn_of(caller) + work + (known.work if known else 0)
        return sum(
            other.work if other is known else min(other.work, max(0, last_turn_at - other.turn_at))
            for other in self._callers.values()
        )

    def _next_turn_of(self, caller: str) -> int:
        if known := self._callers.get(caller):
            return known.turn_at
        now = self._turns[0][1].turn_at if self._turns else 0
        return max(now, self._left_at.get(caller, 0))

    def _next_order(self) -> int:
        self._num_turns += 1
        return self._num_turns - 1

    def _take_out(self, caller: _Caller, pending: PendingSegment) -> None:
        del caller.waiting[pending]
        caller.work -= pending.work
        del self._waiting[pending]
        self._work -= pending.work

    def _dismiss_if_done(self, name: str) -> None:
        """Forget a caller who has nothing waiting, but remember how far ahead of the others it was served."""
        caller = self._callers[name]
        if caller.waiting:
            return
        del self._callers[name]
        del self._turns[bisect_left(self._turns, (caller.key,))]
        self._left_at[name] = caller.turn_at
        if not self._turns:  # nobody is behind anybody
            self._left_at.clear()
        elif len(self._left_at) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget those whose turn the others have reached; each time as much is added as is looked at."""
        now = self._turns[0][1].turn_at
        self._left_at = {name: turn_at for name, turn_at in self._left_at.items() if turn_at > now}
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._left_at))


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
