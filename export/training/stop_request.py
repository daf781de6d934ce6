"""Turns the first SIGINT or SIGTERM into a request to stop after the step at hand."""

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A flag that signals set while it is entered; a second signal interrupts at once."""

    def __init__(self) -> None:
        """Start unset."""
        self.signal_name: str | None = None

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread may."""
        self._previous = [(number, signal.signal(number, self._handle)) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Bring the earlier handlers back."""
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name is not None:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
