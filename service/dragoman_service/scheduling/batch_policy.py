"""Batch policy: which queued segments join a running batch or are encoded ahead; pure functions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.scheduling.admission_queue import QueuedSegment

_MAX_TOKENS_AHEAD = 512  # source tokens: 2 MiB of encoder output of the bundled model, 12 MiB of Transformer-base


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


def select_ahead(
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
        if len(selected) < limit and not segment.is_sent_ahead and segment.num_source_tokens <= num_tokens_left:
            selected.append(segment)
            num_tokens_left -= segment.num_source_tokens
    return selected


def _preference(head: QueuedSegment, other: QueuedSegment) -> tuple[bool, bool, int]:
    is_bulk = other.context.priority is Priority.BULK
    return is_bulk, not other.is_encoded, abs(other.num_source_tokens - head.num_source_tokens)
