"""The queue of admitted segments: priorities, fairness between callers, deadlines, and which segments join a batch."""

import contextlib
import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import chain, count, islice

from dragoman_service.datatypes import Priority, Segment, SegmentResult
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DragomanError
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission import Backlog, Prediction, QueueState, RequestCost

_MIN_SWEEP = 64
_MAX_TOKENS_AHEAD = 512  # source tokens: 2 MiB of encoder output of the bundled model, 12 MiB of Transformer-base
_next_id = count().__next__


@dataclass(kw_only=True, eq=False, repr=False)
class QueuedSegment(Future[SegmentResult]):
    """A segment from its admission to its result, and the future that its caller waits for; equal only to itself.

    It is a future, instead of having one, so that no reference cycle keeps it alive after its result. The future stays
    pending until then, so that the caller can cancel it at any time.
    """

    segment_id: int = field(default_factory=_next_id)
    segment: Segment
    context: RequestContext = field(default_factory=RequestContext)
    decode_cost: int = 1  # expected; at least 1
    admitted_at_s: float = 0.0
    prediction: Prediction | None = None  # of the request; only its last segment has it
    # Known after the worker has reported the start of the segment:
    queue_s: float = 0.0  # from admission to joining a batch, without the encoder run
    encode_s: float = 0.0
    decode_started_at_s: float = 0.0
    is_prefetched: bool = False  # to a worker that encodes it while it is queued
    is_encoded: bool = False
    is_end_recorded: bool = False  # whether the scheduler has handled the result or the cancellation

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def num_source_tokens(self) -> int:
        """Source tokens, including EOS."""
        return len(self.segment.source_ids)

    def resolve(self, outcome: SegmentResult | DragomanError) -> None:
        """Set the result or the error, unless the segment already has one or was cancelled."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, DragomanError):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)


class AdmissionQueue:
    """Queued segments by priority; not thread-safe: the scheduler holds its lock.

    Interactive segments are served before bulk segments, unless a bulk segment has waited longer than
    `max_bulk_wait_s`. Within a priority, the queue is fair to callers.
    """

    def __init__(self, *, max_bulk_wait_s: float) -> None:
        self._max_bulk_wait_s = max_bulk_wait_s
        self._queues = {priority: FairQueue() for priority in Priority}
        self.num_segments = self.num_tokens = self.decode_cost = 0
        self._next_deadline_s = math.inf  # a lower bound: removing a segment does not raise it

    def __iter__(self) -> Iterator[QueuedSegment]:
        return chain(*self._queues.values())

    def state(self, cost: RequestCost, context: RequestContext, *, num_running: int) -> QueueState:
        """Return the state of the queue for the admission of a request; takes time per caller, not per segment."""
        interactive, bulk = self._queues[Priority.INTERACTIVE], self._queues[Priority.BULK]
        held, held_bulk = interactive.held_by(context.caller), bulk.held_by(context.caller)
        cost_ahead = self._queues[context.priority].cost_ahead(context.caller, cost.decode_cost)
        if context.priority is Priority.BULK:
            cost_ahead += interactive.decode_cost
        num_ahead = round(cost_ahead * self.num_segments / self.decode_cost) if self.num_segments else 0
        return QueueState(
            num_segments=self.num_segments,
            decode_cost=self.decode_cost,
            num_caller_segments=held[0] + held_bulk[0],
            caller_decode_cost=held[1] + held_bulk[1],
            num_callers=max(1, interactive.num_callers, bulk.num_callers),
            backlog=Backlog(num_queued=num_ahead, decode_cost=cost_ahead, num_running=num_running),
        )

    def add(self, segments: Sequence[QueuedSegment]) -> None:
        """Queue the segments of an admitted request."""
        for segment in segments:
            self._queues[segment.context.priority].add(segment)
            self._count(segment, 1)
            self._next_deadline_s = min(self._next_deadline_s, segment.context.deadline_s)

    def dequeue(self, segment: QueuedSegment) -> None:
        """Remove a queued segment to decode it."""
        self._queues[segment.context.priority].dequeue(segment)
        self._count(segment, -1)

    def discard(self, segment: QueuedSegment) -> bool:
        """Remove a segment that is not decoded; return False if it is not queued."""
        if is_queued := self._queues[segment.context.priority].discard(segment):
            self._count(segment, -1)
        return is_queued

    def pop_expired(self, now_s: float) -> list[QueuedSegment]:
        """Remove and return the segments whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return []
        expired = [segment for segment in self if segment.context.deadline_s <= now_s]
        for segment in expired:
            self.discard(segment)
        self._next_deadline_s = min((segment.context.deadline_s for segment in self), default=math.inf)
        return expired

    def peek(self, now_s: float, *, limit: int) -> list[QueuedSegment]:
        """Return the next segments in the order of service, without removing them."""
        interactive = self._queues[Priority.INTERACTIVE].peek(limit)
        oldest = self._queues[Priority.BULK].oldest
        is_bulk_due = oldest is not None and now_s - oldest.admitted_at_s > self._max_bulk_wait_s
        bulk = self._queues[Priority.BULK].peek(max(int(is_bulk_due), limit - len(interactive)))
        if is_bulk_due:  # the next segment by fairness, so that a caller with many bulk segments gets no advantage
            return [bulk[0], *interactive, *bulk[1:]][:limit]
        return interactive + bulk

    def _count(self, segment: QueuedSegment, sign: int) -> None:
        self.num_segments += sign
        self.num_tokens += sign * segment.num_source_tokens
        self.decode_cost += sign * segment.decode_cost


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    start_tag: int  # virtual time: cost served so far, plus the virtual time of the first arrival; the least is next
    order: int  # breaks ties: the caller that was served last is last
    queued: dict[QueuedSegment, None] = field(default_factory=dict)  # an ordered set
    decode_cost: int = 0  # of the queued segments

    @property
    def key(self) -> tuple[int, int]:
        return self.start_tag, self.order


class FairQueue:
    """Queued segments of one priority: fair between callers, first in, first out for each caller.

    Start-time fair queueing (Goyal et al. 1996) with one flow per caller: the next segment is that of the caller with
    the least cost served. A caller that returns starts at the minimum virtual time of the active callers, or at its
    previous one if that is later, so neither a pause nor a cancelled request changes the share of any caller.
    """

    def __init__(self) -> None:
        self._queued: dict[QueuedSegment, None] = {}  # in order of admission
        self._callers: dict[str, _Caller] = {}
        self._order: list[tuple[tuple[int, int], _Caller]] = []  # sorted; keys are unique
        self._idle_tags: dict[str, int] = {}  # start tags of callers without segments, if they may be in the future
        self._sweep_at = _MIN_SWEEP
        self._num_served = 0
        self.decode_cost = 0

    def __len__(self) -> int:
        return len(self._queued)

    def __iter__(self) -> Iterator[QueuedSegment]:
        """Iterate over the segments in the order of admission."""
        return iter(self._queued)

    @property
    def num_callers(self) -> int:
        """Callers with queued segments."""
        return len(self._callers)

    @property
    def oldest(self) -> QueuedSegment | None:
        """The segment that was admitted first."""
        return next(iter(self._queued), None)

    def held_by(self, caller: str) -> tuple[int, int]:
        """Return the number of queued segments of a caller and their decode cost."""
        known = self._callers.get(caller)
        return (len(known.queued), known.decode_cost) if known else (0, 0)

    def add(self, segment: QueuedSegment) -> None:
        """Queue a segment behind those of its caller."""
        caller = self._callers.get(segment.context.caller)
        if caller is None:
            caller = _Caller(start_tag=self._start_tag(segment.context.caller), order=self._next_order())
            self._idle_tags.pop(segment.context.caller, None)
            self._callers[segment.context.caller] = caller
            insort(self._order, (caller.key, caller))
        caller.queued[segment] = None
        caller.decode_cost += segment.decode_cost
        self._queued[segment] = None
        self.decode_cost += segment.decode_cost

    def dequeue(self, segment: QueuedSegment) -> None:
        """Remove a segment to decode it, and charge its cost to its caller."""
        caller = self._callers[segment.context.caller]
        self._remove(caller, segment)
        del self._order[bisect_left(self._order, (caller.key,))]
        caller.start_tag += segment.decode_cost
        caller.order = self._next_order()
        insort(self._order, (caller.key, caller))
        self._remove_if_idle(segment.context.caller)

    def discard(self, segment: QueuedSegment) -> bool:
        """Remove a segment that is not decoded; return False if it is not queued."""
        if segment not in self._queued:
            return False
        self._remove(self._callers[segment.context.caller], segment)
        self._remove_if_idle(segment.context.caller)
        return True

    def peek(self, limit: int) -> list[QueuedSegment]:
        """Return the next segments in the order of service."""
        segments: list[QueuedSegment] = []
        order = count(self._num_served)
        heap = [(key, iter(caller.queued)) for key, caller in islice(self._order, limit)]  # sorted, so it is a heap
        while heap and len(segments) < limit:
            (start_tag, _), queued = heap[0]
            segment = next(queued, None)
            if segment is None:
                heapq.heappop(heap)
            else:
                segments.append(segment)
                heapq.heapreplace(heap, ((start_tag + segment.decode_cost, next(order)), queued))
        return segments

    def cost_ahead(self, caller: str, decode_cost: int) -> int:
        """Return the cost served before `decode_cost` more of a caller, including its own queued segments."""
        known = self._callers.get(caller)
        last_tag = self._start_tag(caller) + decode_cost + (known.decode_cost if known else 0)
        return sum(
            other.decode_cost if other is known else min(other.decode_cost, max(0, last_tag - other.start_tag))
            for other in self._callers.values()
        )

    def _start_tag(self, caller: str) -> int:
        if known := self._callers.get(caller):
            return known.start_tag
        virtual_time = self._order[0][1].start_tag if self._order else 0
        return max(virtual_time, self._idle_tags.get(caller, 0))

    def _next_order(self) -> int:
        self._num_served += 1
        return self._num_served - 1

    def _remove(self, caller: _Caller, segment: QueuedSegment) -> None:
        del caller.queued[segment]
        caller.decode_cost -= segment.decode_cost
        del self._queued[segment]
        self.decode_cost -= segment.decode_cost

    def _remove_if_idle(self, name: str) -> None:
        """Remove a caller without segments, but keep its start tag while it is ahead of the others."""
        caller = self._callers[name]
        if caller.queued:
            return
        del self._callers[name]
        del self._order[bisect_left(self._order, (caller.key,))]
        self._idle_tags[name] = caller.start_tag
        if not self._order:
            self._idle_tags.clear()
        elif len(self._idle_tags) >= self._sweep_at:
            virtual_time = self._order[0][1].start_tag
            self._idle_tags = {other: tag for other, tag in self._idle_tags.items() if tag > virtual_time}
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._idle_tags))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBudget:
    """Maximum size of a batch; a batch of one segment may exceed it."""

    max_segments: int
    max_padded_tokens: int
    max_rows: int

    def allows(self, load: BatchLoad) -> bool:
        """Return whether a batch of this size is within the budget."""
        return load.num_segments <= 1 or (
            load.num_segments <= self.max_segments
            and load.padded_tokens <= self.max_padded_tokens
            and load.rows <= self.max_rows
        )


def fair_share(num_segments: int, *, num_batches: int) -> int:
    """Return the segments per batch if all queued and running segments are spread evenly, rounded up.

    A batch admits segments up to its share. Two empty batches therefore split a request, and while a segment is queued,
    at least one batch is below its share.
    """
    return -(-num_segments // num_batches)


def select_segments(queued: Sequence[QueuedSegment], running: BatchLoad, budget: BatchBudget) -> list[QueuedSegment]:
    """Return which of `queued`, in the order of service, join a batch within its budget.

    The head of the queue joins first, or no segment does: otherwise a long head could be overtaken forever. The rest of
    the budget goes to interactive before bulk segments; within a priority to segments that are already encoded, then to
    those whose source is closest in length to the head, because they are padded together.

    A segment is overtaken only by segments of the same lookahead, and each time the head leaves the queue. So
    `queued[i]` joins after at most i + 1 selections, unless new segments are served before it.
    """
    if not queued:
        return []
    head = queued[0]
    load = running.plus(head.segment)
    if not budget.allows(load):
        return []
    selected = [head]
    for segment in sorted(queued[1:], key=lambda other: _preference(head, other)):
        extended = load.plus(segment.segment)
        if budget.allows(extended):
            selected.append(segment)
            load = extended
    return selected


def select_prefetch(
    queued: Sequence[QueuedSegment], encoded: Collection[QueuedSegment], *, window: int, limit: int
) -> list[QueuedSegment]:
    """Return which of `queued`, in the order of service, are encoded before they join a batch.

    They keep their positions in the queue. Each encoder run has a fixed cost; where segments join one at a time, this
    combines several runs into one.

    Args:
        queued: the next segments of the queue.
        encoded: segments that the batch has encoded ahead and that are still queued; they count towards a limit in
            tokens.
        window: number of segments of `queued` to consider, so that encoder outputs are not kept for long.
        limit: maximum number of selected segments.
    """
    num_tokens_left = _MAX_TOKENS_AHEAD - sum(segment.num_source_tokens for segment in encoded)
    selected: list[QueuedSegment] = []
    for segment in queued[:window]:
        if len(selected) < limit and not segment.is_prefetched and segment.num_source_tokens <= num_tokens_left:
            selected.append(segment)
            num_tokens_left -= segment.num_source_tokens
    return selected


def _preference(head: QueuedSegment, other: QueuedSegment) -> tuple[bool, bool, int]:
    is_bulk = other.context.priority is Priority.BULK
    return is_bulk, not other.is_encoded, abs(other.num_source_tokens - head.num_source_tokens)
