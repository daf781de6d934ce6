"""A segment between its admission and its answer."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from service.datatypes import Priority, Segment, SegmentResult
from service.errors import DragomanError


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class PendingSegment:
    """An admitted segment and the place where its one answer goes; equal only to itself."""

    segment: Segment
    priority: Priority
    caller: str = ""
    """Name of who asked; empty for what the process asks itself."""

    work: int = 1
    """Expected work tokens, see `service.scheduling.forecast`; at least 1."""

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
