"""Which waiting segments join a running batch: pure functions of queue and batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.datatypes import Priority
from service.decoding.running_batch import BatchLoad
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


def fair_share(num_segments: int, *, num_batches: int) -> int:
    """Return the segments that each batch holds if all that wait and run are spread evenly, rounded up.

    A batch takes new segments up to its share. So two empty batches split a group, a full one leaves new segments to an
    empty one, and while something waits there is always a batch below its share.
    """
    return -(-num_segments // num_batches)


def select_segments(waiting: Sequence[PendingSegment], running: BatchLoad, budget: BatchBudget) -> list[PendingSegment]:
    """Return the segments that join a batch.

    The head of the queue joins first, or none does: if it does not fit yet, others must not keep it from ever fitting.
    The rest of the budget goes to interactive segments before bulk ones, within a priority to those whose source is
    closest in length to the head's, because they are padded together.

    So a segment is overtaken only by those looked at with it, and each time one of those before it has left: of
    `waiting[i]`, at most i + 1 selections are made until it joins, unless others come in before it. A caller is ahead
    of its fair share by no more than the work of what is looked at, and that work counts when it is next served.

    Args:
        waiting: what is looked at of the queue, in the order it should be served.
        running: the batch as it is.
        budget: kept by the batch that results, unless that is one segment.
    """
    if not waiting:
        return []
    head = waiting[0]
    load = running.plus(head.segment)
    if not budget.allows(load):
        return []
    selected = [head]
    for pending in sorted(waiting[1:], key=lambda other: _distance(head, other)):
        extended = load.plus(pending.segment)
        if budget.allows(extended):
            selected.append(pending)
            load = extended
    return selected


def _distance(head: PendingSegment, other: PendingSegment) -> tuple[bool, int]:
    """Order of preference to share a batch with the head."""
    return other.context.priority is Priority.BULK, abs(other.num_source_tokens - head.num_source_tokens)
