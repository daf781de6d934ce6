"""Shares of the cores: how many batches of each busy model admit segments."""

from dragoman_service.threads import num_cores


class CoreShares:
    """Shares the cores between the schedulers that have segments.

    Each worker decodes with up to a thread per core. Without shares, two busy models keep twice as many threads busy as
    there are cores, which delays the event loop and makes predictions of latency wrong.
    """

    def __init__(self, cores: int | None = None) -> None:
        """Share a number of cores, by default those that the process can use."""
        self._cores = cores or num_cores()
        self._busy: dict[object, int] = {}  # batches of each scheduler that has segments

    def set_busy(self, scheduler: object, num_batches: int) -> None:
        """Count a scheduler that has segments."""
        self._busy[scheduler] = num_batches

    def set_idle(self, scheduler: object) -> None:
        """Stop counting a scheduler."""
        self._busy.pop(scheduler, None)

    def share(self, num_batches: int) -> int:
        """Return how many of the batches of a busy scheduler admit segments, rounded up; at least 1."""
        busy = tuple(self._busy.values())  # a copy, because schedulers may be stopped in other threads
        total = sum(busy)
        limit = max(self._cores, num_batches)
        return num_batches if total <= limit else -(-num_batches * limit // total)
