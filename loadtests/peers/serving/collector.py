"""Who is translated with whom, and when: the pure side of dynamic batching."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_Options = TypeVar("_Options", bound=Hashable)
_Member = TypeVar("_Member")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[_Options, _Member]):
    """Members that are translated together."""

    options: _Options
    """The same for all of them."""

    members: tuple[_Member, ...]
    """In the order in which they came; at least one."""


class Collector(Generic[_Options, _Member]):
    """Collects up to so many members of the same options, or for so long.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self, *, max_batch_size: int, max_wait_s: float) -> None:
        """Hold nobody yet.

        Args:
            max_batch_size: most members of a batch; as soon as so many wait, the batch is due.
            max_wait_s: from the arrival of its first member, until a batch is due however small it is.
        """
        self._max_batch_size = max_batch_size
        self._max_wait_s = max_wait_s
        self._waiting: dict[_Options, deque[tuple[float, _Member]]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._num_waiting

    def add(self, options: _Options, members: Sequence[_Member], *, now_s: float) -> None:
        """Let members wait; there may be none."""
        if not members:
            return
        self._waiting.setdefault(options, deque()).extend((now_s, member) for member in members)
        self._num_waiting += len(members)

    def take(self, now_s: float) -> Batch[_Options, _Member] | None:
        """Remove and return the due batch whose first member came first; None if none is due."""
        due = [options for options, queue in self._waiting.items() if self._due_s(queue) <= now_s]
        if not due:
            return None
        options = min(due, key=lambda options: self._waiting[options][0][0])
        queue = self._waiting[options]
        members = tuple(queue.popleft()[1] for _ in range(min(self._max_batch_size, len(queue))))
        self._num_waiting -= len(members)
        if not queue:
            del self._waiting[options]  # callers may choose among any number of options
        return Batch(options=options, members=members)

    def next_due_s(self) -> float | None:
        """Return when the next batch is due if nobody comes; None if nobody waits."""
        return min(map(self._due_s, self._waiting.values()), default=None)

    def _due_s(self, queue: deque[tuple[float, _Member]]) -> float:
        first_s, _ = queue[0]
        return first_s if len(queue) >= self._max_batch_size else first_s + self._max_wait_s
