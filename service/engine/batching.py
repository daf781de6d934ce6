"""Who joins a running batch next: pure functions of queue and batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.datatypes import Priority
from service.engine.protocol import BatchLoad
from service.engine.queue import PendingSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBudget:
    """How large a batch may be."""

    max_segments: int
    max_padded_tokens: int
    max_rows: int

    def allows(self, load: BatchLoad) -> bool:
        """Say whether a batch may be this large; a single segment always may."""
        return load.num_segments <= 1 or (
            load.num_segments <= self.max_segments
            and load.padded_tokens <= self.max_padded_tokens
            and load.rows <= self.max_rows
        )


def fair_share(*, num_waiting: int, num_running: int, num_threads: int) -> int:
    """Segments each thread holds if all are spread evenly, rounded up.

    A thread takes newcomers up to its share. So two idle threads split a group, a busy one leaves newcomers to an
    idle one, and while something waits there is always a thread below its share.
    """
    return -(-(num_waiting + num_running) // num_threads)


def next_joiners(waiting: Sequence[PendingSegment], running: BatchLoad, budget: BatchBudget) -> list[PendingSegment]:
    """Choose who joins a batch.

    The head of the queue goes first, or nobody does: if it does not fit yet, others must not keep it from ever
    fitting. The rest of the room goes to interactive segments before bulk ones, in either lane to those whose source
    is closest in length to the head's, because they are padded together.

    So who waits is passed by those only that are looked at with it, and each time one of those before it has left: of
    `waiting[i]`, at most i + 1 batches are joined until it does, unless others come in before it. A caller is ahead
    of its turn by no more work than that of what is looked at, and pays for it in its next turns.

    Args:
        waiting: in the order they should be served; what is looked at, not necessarily all that waits.
        running: the batch as it is.
        budget: kept by the batch that results, unless that is one segment.
    """
    if not waiting:
        return []
    head = waiting[0]
    load = running.plus(head.segment)
    if not budget.allows(load):
        return []
    joiners = [head]
    for pending in sorted(waiting[1:], key=lambda other: _distance(head, other)):
        extended = load.plus(pending.segment)
        if budget.allows(extended):
            joiners.append(pending)
            load = extended
    return joiners


def _distance(head: PendingSegment, other: PendingSegment) -> tuple[bool, int]:
    """Order of preference to share a batch with the head."""
    return other.priority is Priority.BULK, abs(other.num_source_tokens - head.num_source_tokens)
