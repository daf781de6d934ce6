"""One batch in the decoding process: obeys between two steps, and reports."""

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Final

from service.hosting.messages import Report
from service.hosting.usage import Usage
from service.scheduling.batch import Clock, Orders
from service.scheduling.local_batch import LocalBatch
from service.scheduling.turn import Turn
from service.threads import lower_priority

_REPORT_INTERVAL_S: Final = 0.02
"""Most time between two reports of a batch that somebody is in, but for that of a step: so late is it noticed that
somebody has left, and no more often is the server disturbed by a batch that has nothing to tell."""


class BatchServer:
    """Steps a batch as long as somebody is in it, and waits for orders otherwise."""

    def __init__(
        self,
        batch: LocalBatch,
        connection: "Connection[Report, Orders]",
        *,
        niceness: int,
        clock: Clock,
        usage: Usage,
    ) -> None:
        """Take a batch and the connection to whom it belongs."""
        self._batch = batch
        self._connection = connection
        self._niceness = niceness
        self._clock = clock
        self._usage = usage
        self._orders: SimpleQueue[Orders | None] = SimpleQueue()  # None: there will be no more
        self._turns: list[Turn] = []
        self._is_asked = False
        self._reported_at_s = 0.0

    def run(self) -> None:
        """Serve until the other end is closed."""
        receiver = threading.Thread(target=self._receive, name="orders", daemon=True)
        receiver.start()
        lower_priority(self._niceness)
        try:
            while (orders := self._next_orders()) is not None:
                self._turns.append(self._batch.turn(orders))
                if self._is_due():
                    self._report()
        except OSError:  # nobody listens any more
            pass
        finally:
            self._hang_up()  # which the receiver notices; to close what it reads from would give its number to others
            receiver.join()
            self._connection.close()

    def _hang_up(self) -> None:
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end, contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        """Take orders off the connection as they come, so that whoever gives them never waits for a step."""
        try:
            while True:
                self._orders.put(self._connection.recv())
        except (EOFError, OSError):
            self._orders.put(None)

    def _next_orders(self) -> Orders | None:
        """Return all orders given so far as one, waiting for some if nobody is in the batch; None after the last.

        Empty ones among them ask for a report after this turn.
        """
        given = []
        try:
            given.append(self._orders.get(block=not self._batch.num_segments))
            while True:
                given.append(self._orders.get_nowait())
        except Empty:
            pass
        orders = [one for one in given if one is not None]
        self._is_asked = not all(orders)
        return merged(orders) if len(orders) == len(given) else None

    def _is_due(self) -> bool:
        turn = self._turns[-1]
        is_news = bool(turn.ended or turn.late or turn.fault) or not self._batch.num_segments
        return is_news or self._is_asked or self._clock() - self._reported_at_s >= _REPORT_INTERVAL_S

    def _report(self) -> None:
        usage = self._usage
        self._connection.send(
            Report(turns=tuple(self._turns), cache_bytes=usage.cache_bytes(), cpu_s=usage.untold_cpu_s())
        )
        self._turns = []
        self._reported_at_s = self._clock()


def merged(orders: list[Orders]) -> Orders:
    """Return orders that were given one after the other as one; who was dropped before he could join does not."""
    dropped = tuple(key for one in orders for key in one.dropped)
    newcomers = tuple(newcomer for one in orders for newcomer in one.newcomers if newcomer.key not in dropped)
    return Orders(newcomers=newcomers, dropped=dropped)
