"""Giving results to those who wait for them, apart from the threads that decode."""

import threading
from queue import SimpleQueue

from service.datatypes import SegmentResult
from service.scheduling.pending import PendingSegment


class Answers:
    """Hands results over in a thread of its own; every method may be called from any thread.

    To wake whoever waits is a system call, for which Python's lock is given up. The thread woken takes the lock and
    keeps it until it has sent the answer, and whoever woke it waits that long for the lock to come back: a decoding
    thread would keep a whole batch waiting, each time one of its segments ends.
    """

    def __init__(self) -> None:
        """Begin without a thread; the first answer starts it."""
        self._results: SimpleQueue[tuple[PendingSegment, SegmentResult] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the thread's start

    def give(self, pending: PendingSegment, result: SegmentResult) -> None:
        """Answer a segment soon; nothing happens if it is answered or cancelled before. Never waits."""
        if self._thread is None:
            self._start()
        self._results.put((pending, result))

    def stop(self, timeout_s: float) -> None:
        """Wait until everything given is handed over, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._results.put(None)
            thread.join(timeout_s)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._hand_over, name="answers", daemon=True)
                self._thread.start()

    def _hand_over(self) -> None:
        while (given := self._results.get()) is not None:
            pending, result = given
            pending.answer(result)
