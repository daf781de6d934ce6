"""A batch that a decoding process decodes, as the worker in the server sees it."""

import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Final

from service.errors import EngineError
from service.hosting.messages import Report
from service.scheduling.batch import Orders
from service.scheduling.turn import Turn

Connect = Callable[[], "Connection[Orders, Report]"]
"""Makes a connection to an empty batch; raises EngineError if there is no process and none can be started."""

_MAX_WAKES: Final = 64


class HostedBatch:
    """Gives orders over a connection, and waits for what was done; connects anew if the process has ended."""

    def __init__(self, connect: Connect, *, note: Callable[[Report], None]) -> None:
        """Connect with the first exchange.

        Args:
            connect: to a batch.
            note: told of each report.
        """
        self._connect = connect
        self._note = note
        self._connection: Connection[Orders, Report] | None = None
        self._keys: set[int] = set()  # of who is in the batch
        self._wakes, self._waker = socket.socketpair()  # objects: a closed one is never taken for another file
        self._waker.setblocking(False)
        self._is_woken = False
        self._is_interrupted = False
        self._has_asked = False  # for a report that has not come yet
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        """Send orders, if there are any, and return what the batch reports; nothing if interrupted before it does.

        Raises:
            EngineError: if the process has ended, with all who were in the batch.
        """
        try:
            self._send(orders)
            return [turn for report in self._reports() for turn in report.turns]
        except (EOFError, OSError) as error:
            self._disconnect()
            raise EngineError("the decoding process has ended") from error

    def wake(self) -> None:
        """Let an exchange that waits ask for a report, which comes with the end of the step."""
        if not self._is_woken:
            self._is_woken = True
            self._signal()

    def interrupt(self) -> None:
        """Let exchanges return at once from now on."""
        self._is_interrupted = True
        self._signal()

    def reset(self) -> None:
        """Let the process forget the batch; the next exchange connects anew."""
        self._disconnect()

    def adopt_thread(self, *, niceness: int) -> None:
        """Do nothing: it is another thread that decodes."""

    def close(self) -> None:
        """Let the process forget the batch."""
        self._disconnect()
        self._wakes.close()
        self._waker.close()

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # full, which wakes as well, or closed
            self._waker.send(b"\0")

    def _send(self, orders: Orders) -> None:
        if not orders:
            return
        if self._connection is not None and not self._keys and self._has_hung_up():
            self._disconnect()  # while nobody was in it: nobody need know
        if self._connection is None:
            self._connection = self._connect()
            self._poll.register(self._connection.fileno(), select.POLLIN)
        self._keys.update(newcomer.key for newcomer in orders.newcomers)
        self._keys.difference_update(orders.dropped)
        self._connection.send(orders)

    def _has_hung_up(self) -> bool:
        return any(events & select.POLLHUP for _, events in self._poll.poll(0))

    def _reports(self) -> list[Report]:
        """Return what has come, waiting for it."""
        if self._connection is None:
            raise EOFError
        reports: list[Report] = []
        timeout_ms = None
        while not self._is_interrupted and (events := dict(self._poll.poll(timeout_ms))):
            if self._wakes.fileno() in events:
                self._wakes.recv(_MAX_WAKES)
                self._is_woken = False  # only now: of whoever comes from here on the next wake tells
                if not self._has_asked:
                    self._has_asked = True
                    self._connection.send(Orders())
            if self._connection.fileno() in events:
                try:
                    reports.append(self._taken_in(self._connection.recv()))
                except (EOFError, OSError):
                    if not reports:
                        raise
                    break  # what was done before is told first, the end the next time
            timeout_ms = 0
        return reports

    def _taken_in(self, report: Report) -> Report:
        self._note(report)
        self._has_asked = False
        for turn in report.turns:
            self._keys.difference_update(turn.late, turn.lost, (ended.handle for ended in turn.ended))
        return report

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection.fileno())
            self._connection.close()
        self._connection = None
        self._has_asked = False
        self._keys.clear()
