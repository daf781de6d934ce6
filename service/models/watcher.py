"""Looks at the directory of models from time to time."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Watcher:
    """Calls `refresh` again and again, in a thread of its own, until it is ended."""

    def __init__(self, refresh: Callable[[], None], *, interval_s: float) -> None:
        """Prepare it; nothing runs before `start`.

        Args:
            refresh: what to do; if it fails, that is logged and it is called again next time.
            interval_s: from the end of a call to the next; 0: it is never called.
        """
        self._refresh = refresh
        self._interval_s = interval_s
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-models", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        if self._interval_s and not self._is_ended.is_set():
            self._thread.start()

    def end(self) -> None:
        """Look no more; a call that runs goes on. May be called at any time, more than once."""
        self._is_ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait for a call that runs, after `end`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_ended.wait(self._interval_s):
            try:
                self._refresh()
            except Exception:  # a directory that cannot be read now may be there again next time
                log.exception("looking for models failed")
