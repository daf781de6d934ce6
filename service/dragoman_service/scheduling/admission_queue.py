"""The bounded queue: all-or-nothing admission, priorities, fairness between callers, deadlines, when to retry."""

import contextlib
import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import chain, count, islice

from dragoman_service.datatypes import Priority, Segment, SegmentResult
from dragoman_service.errors import DragomanError, OverloadedError
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.latency_model import Forecast, Prediction, RequestCost, WorkAhead
from dragoman_service.scheduling.settings import SchedulingSettings

_MIN_SWEEP = 64


@dataclass(kw_only=True, eq=False, repr=False)
class QueuedSegment(Future[SegmentResult]):
    """A segment between its admission and its answer, and the future that its caller waits for; equal only to itself.

    The future stays pending until answered, so that its owner can cancel it at any time.
    """

    segment_id: int = 0
    """In messages to the engine core."""

    segment: Segment
    context: RequestContext = field(default_factory=RequestContext)
    work: int = 1
    """Expected work tokens, see `dragoman_service.scheduling.latency_model`; at least 1."""

    admitted_at_s: float = 0.0
    """On the engine client's clock, as the other times."""

    prediction: Prediction | None = None
    """When its request was expected to be answered; the last segment of a request has it."""

    queue_s: float = 0.0
    """Until it joined a batch, without its encoder run; known once that is reported, as are the next two."""

    encode_s: float = 0.0
    decode_began_s: float = 0.0
    is_sent_ahead: bool = False
    """Whether a batch was told to encode it before it joins; that happens once."""

    is_encoded: bool = False
    """Whether it is known to have been encoded."""

    is_end_noted: bool = False
    """Whether the engine client has seen that it was answered or cancelled, a moment after it was."""

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def num_source_tokens(self) -> int:
        """EOS counted."""
        return len(self.segment.source_ids)

    def answer(self, outcome: SegmentResult | DragomanError) -> None:
        """Give the result or an error, unless the segment was answered or cancelled before."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, DragomanError):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)


class AdmissionQueue:
    """Segments that wait, by priority; not thread-safe: the engine client guards it.

    Interactive segments are served before bulk ones, unless a bulk segment has waited longer than `max_bulk_wait_s`;
    within a priority the queue is fair to callers.

    Limits: segments and expected work, of all callers together and of each. A caller may hold a share of what the
    others leave (dynamic thresholds, Choudhury and Hahne 1998): with a share of 0.5 one caller gets half of the
    queue, two get a third each, and the next one always finds room. Segments without a caller come from the process
    itself; only the queue bounds them.
    """

    def __init__(self, settings: SchedulingSettings) -> None:
        self._settings = settings
        self._queues = {priority: FairQueue() for priority in Priority}
        self.num_segments = self.num_tokens = self.work = 0
        """What waits: segments, source tokens, expected work tokens."""
        self._next_deadline_s = math.inf  # no deadline is earlier; may be one of a segment that has left

    def __iter__(self) -> Iterator[QueuedSegment]:
        return chain(*self._queues.values())

    def check_capacity(self, cost: RequestCost, *, caller: str, forecast: Forecast) -> None:
        """Raise OverloadedError, which says when to retry by the forecast, if a request does not fit."""
        num_waiting, work, settings = self.num_segments, self.work, self._settings
        num_held, work_held = map(sum, zip(*(queue.held_by(caller) for queue in self._queues.values()), strict=True))
        num_callers = max(1, *(queue.num_callers for queue in self._queues.values()))
        for unit, held, queued, added, limit, work_each in (
            (
                "segments",
                num_held,
                num_waiting,
                cost.num_segments,
                settings.max_queue_segments,
                work / max(1, num_waiting),
            ),
            ("work tokens", work_held, work, cost.work, settings.max_queue_work_tokens, 1.0),
        ):
            excess = float(queued + added - limit)
            if excess <= 0 and caller:
                share = settings.max_caller_queue_share
                limit = math.floor(share * (limit - (queued - held)))  # noqa: PLW2901
                freed_by_each = share + (1 - share) / num_callers  # what is done is this caller's in its turn
                excess = (held + added - limit) / freed_by_each
                unit, queued = f"{unit} of this caller", held  # noqa: PLW2901
            if excess > 0:
                excess_s = forecast.work_done_in_s(min(math.ceil(excess * work_each), work))
                retry_after_s = forecast.retry_after_s(excess_s=excess_s)
                raise OverloadedError(queued=queued, limit=limit, unit=unit, retry_after_s=retry_after_s)

    def add(self, group: Sequence[QueuedSegment]) -> None:
        """Let all segments of a request wait, which fit."""
        for pending in group:
            self._queues[pending.context.priority].add(pending)
            self._count(pending, 1)
            self._next_deadline_s = min(self._next_deadline_s, pending.context.deadline_s)

    def work_ahead(self, cost: RequestCost, context: RequestContext, *, num_running: int) -> WorkAhead:
        """Return what is served before the last segment of a request; takes time for each caller, not each segment."""
        work = self._queues[context.priority].work_before(context.caller, cost.work)
        if context.priority is Priority.BULK:
            work += self._queues[Priority.INTERACTIVE].work
        num_waiting = round(work * self.num_segments / self.work) if self.num_segments else 0
        return WorkAhead(num_waiting=num_waiting, work=work, num_running=num_running)

    def serve(self, pending: QueuedSegment) -> None:
        """Take out a segment that waits, to be decoded."""
        self._queues[pending.context.priority].serve(pending)
        self._count(pending, -1)

    def drop(self, pending: QueuedSegment) -> bool:
        """Take out a segment that is no longer wanted; return False if it does not wait here."""
        if is_here := self._queues[pending.context.priority].drop(pending):
            self._count(pending, -1)
        return is_here

    def pop_expired(self, now_s: float) -> list[QueuedSegment]:
        """Remove and return the segments whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return []
        expired = [pending for pending in self if pending.context.deadline_s <= now_s]
        for pending in expired:
            self.drop(pending)
        self._next_deadline_s = min((pending.context.deadline_s for pending in self), default=math.inf)
        return expired

    def peek(self, now_s: float, *, limit: int) -> list[QueuedSegment]:
        """Return the next segments in the order they should be served, without removing them."""
        interactive = self._queues[Priority.INTERACTIVE].peek(limit)
        oldest = self._queues[Priority.BULK].oldest
        is_bulk_due = oldest is not None and now_s - oldest.admitted_at_s > self._settings.max_bulk_wait_s
        bulk = self._queues[Priority.BULK].peek(max(int(is_bulk_due), limit - len(interactive)))
        if is_bulk_due:  # the next by fairness, not the oldest: patience must not favour a caller with much bulk work
            return [bulk[0], *interactive, *bulk[1:]][:limit]
        return interactive + bulk

    def _count(self, pending: QueuedSegment, by: int) -> None:
        self.num_segments += by
        self.num_tokens += by * pending.num_source_tokens
        self.work += by * pending.work


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    """A caller with segments that wait."""

    start_tag: int
    """On the virtual clock of the queue: the work that the caller was served, and where it began. The least is next."""

    order: int
    """Decides among equals: the caller that was served last comes last."""

    waiting: dict[QueuedSegment, None] = field(default_factory=dict)
    """An ordered set: first in, first out, and any may leave."""

    work: int = 0
    """Of what waits."""

    @property
    def key(self) -> tuple[int, int]:
        return self.start_tag, self.order


class FairQueue:
    """Segments of one priority that wait: fair between callers, first in, first out for each caller.

    Start-time fair queueing (Goyal et al. 1996) with one flow for each caller: the next segment is that of the caller
    that was served least work. A caller that comes back begins where the others are, or where it was if that is later,
    so neither a pause nor a cancelled request changes what any caller is due.
    """

    def __init__(self) -> None:
        self._waiting: dict[QueuedSegment, None] = {}  # in order of admission
        self._callers: dict[str, _Caller] = {}
        self._order: list[tuple[tuple[int, int], _Caller]] = []  # sorted; no two keys are equal
        self._left_at: dict[str, int] = {}  # start tags of callers with nothing waiting, if they may be in the future
        self._sweep_at = _MIN_SWEEP
        self._num_served = 0
        self.work = 0
        """Work of all that waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueuedSegment]:
        """All that waits, in order of admission."""
        return iter(self._waiting)

    @property
    def num_callers(self) -> int:
        """Callers with segments that wait."""
        return len(self._callers)

    @property
    def oldest(self) -> QueuedSegment | None:
        """What was admitted first."""
        return next(iter(self._waiting), None)

    def held_by(self, caller: str) -> tuple[int, int]:
        """Return segments and work that a caller has waiting."""
        found = self._callers.get(caller)
        return (len(found.waiting), found.work) if found else (0, 0)

    def add(self, pending: QueuedSegment) -> None:
        """Let a segment wait."""
        caller = self._callers.get(pending.context.caller)
        if caller is None:
            caller = _Caller(start_tag=self._start_tag_of(pending.context.caller), order=self._next_order())
            self._left_at.pop(pending.context.caller, None)
            self._callers[pending.context.caller] = caller
            insort(self._order, (caller.key, caller))
        caller.waiting[pending] = None
        caller.work += pending.work
        self._waiting[pending] = None
        self.work += pending.work

    def serve(self, pending: QueuedSegment) -> None:
        """Take out a segment to be decoded; its caller is next served later by its work."""
        caller = self._callers[pending.context.caller]
        self._take_out(caller, pending)
        del self._order[bisect_left(self._order, (caller.key,))]
        caller.start_tag += pending.work
        caller.order = self._next_order()
        insort(self._order, (caller.key, caller))
        self._forget_if_done(pending.context.caller)

    def drop(self, pending: QueuedSegment) -> bool:
        """Take out a segment that is no longer wanted; return False if it does not wait here."""
        if pending not in self._waiting:
            return False
        self._take_out(self._callers[pending.context.caller], pending)
        self._forget_if_done(pending.context.caller)
        return True

    def peek(self, limit: int) -> list[QueuedSegment]:
        """Return the next segments in the order in which they are served."""
        found: list[QueuedSegment] = []
        order = count(self._num_served)
        heap = [(key, iter(caller.waiting)) for key, caller in islice(self._order, limit)]  # sorted, so it is a heap
        while heap and len(found) < limit:
            (start_tag, _), waiting = heap[0]
            pending = next(waiting, None)
            if pending is None:
                heapq.heappop(heap)
            else:
                found.append(pending)
                heapq.heapreplace(heap, ((start_tag + pending.work, next(order)), waiting))
        return found

    def work_before(self, caller: str, work: int) -> int:
        """Return the work that is served before so much more of a caller, its own included if it waits already."""
        known = self._callers.get(caller)
        last_tag = self._start_tag_of(caller) + work + (known.work if known else 0)
        return sum(
            other.work if other is known else min(other.work, max(0, last_tag - other.start_tag))
            for other in self._callers.values()
        )

    def _start_tag_of(self, caller: str) -> int:
        if known := self._callers.get(caller):
            return known.start_tag
        now = self._order[0][1].start_tag if self._order else 0
        return max(now, self._left_at.get(caller, 0))

    def _next_order(self) -> int:
        self._num_served += 1
        return self._num_served - 1

    def _take_out(self, caller: _Caller, pending: QueuedSegment) -> None:
        del caller.waiting[pending]
        caller.work -= pending.work
        del self._waiting[pending]
        self.work -= pending.work

    def _forget_if_done(self, name: str) -> None:
        """Forget a caller with nothing waiting, but remember how far ahead of the others it was served."""
        caller = self._callers[name]
        if caller.waiting:
            return
        del self._callers[name]
        del self._order[bisect_left(self._order, (caller.key,))]
        self._left_at[name] = caller.start_tag
        if not self._order:  # no caller is behind another
            self._left_at.clear()
        elif len(self._left_at) >= self._sweep_at:  # forget those that the others have reached
            now = self._order[0][1].start_tag
            self._left_at = {other: start_tag for other, start_tag in self._left_at.items() if start_tag > now}
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._left_at))
