"""Turns of callers: who waits is served in proportion to work, whoever sends more only waits longer itself."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from service.scheduling.pending import PendingSegment

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
