"""The running batches as the engine client sees them: who joins one (pure functions), and the connection to each."""

import math
import select
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.worker.messages import BatchCommand, BatchReport

_MAX_TOKENS_AHEAD = 512
"""Source tokens that a batch keeps encoded of segments that have not joined: 2 MiB of the model that ships, 12 MiB of
Transformer-base."""


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


def select_segments(waiting: Sequence[QueuedSegment], running: BatchLoad, budget: BatchBudget) -> list[QueuedSegment]:
    """Return which of `waiting`, in the order they should be served, join a batch, which then keeps the budget.

    The head of the queue joins first, or none does: if it does not fit yet, others must not keep it from ever fitting.
    The rest of the budget goes to interactive segments before bulk ones, within a priority to those that are encoded
    already, then to those whose source is closest in length to the head's, because they are padded together.

    So a segment is overtaken only by those looked at with it, and each time one of those before it has left: of
    `waiting[i]`, at most i + 1 selections are made until it joins, unless others come in before it.
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


def select_ahead(
    waiting: Sequence[QueuedSegment], encoded: Collection[QueuedSegment], *, window: int, limit: int
) -> list[QueuedSegment]:
    """Return which of `waiting`, in the order they should be served, are encoded with others, before they join.

    They keep their places in the queue. An encoder run costs as much as some tokens whatever it encodes; where segments
    join one at a time, this makes several runs one.

    Args:
        waiting: the next segments of the queue.
        encoded: sent ahead to the batch before and still waiting; bounds, in tokens, what it keeps of them.
        window: so many of `waiting` are looked at: the next ones, or what is encoded would wait for long.
        limit: select so many at most.
    """
    room = _MAX_TOKENS_AHEAD - sum(pending.num_source_tokens for pending in encoded)
    selected: list[QueuedSegment] = []
    for pending in waiting[:window]:
        if len(selected) < limit and not pending.is_sent_ahead and pending.num_source_tokens <= room:
            selected.append(pending)
            room -= pending.num_source_tokens
    return selected


def _distance(head: QueuedSegment, other: QueuedSegment) -> tuple[bool, bool, int]:
    """Order of preference to share a batch with the head."""
    is_bulk = other.context.priority is Priority.BULK
    return is_bulk, not other.is_encoded, abs(other.num_source_tokens - head.num_source_tokens)


class Core(Protocol):
    """Where batches are decoded: threads of this process, or a process of its own."""

    def connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch; EngineError or OSError if there is none."""

    def close(self, timeout_s: float) -> None:
        """Free what the batches share; their connections are closed already."""

    def kill(self, cause: str) -> bool:
        """End what is stuck, with all batches; False if nothing can end it."""

    def check_load(self) -> None:
        """Raise EngineError if warming up takes too long, DrainingError if it is not wanted any more."""


class Batch:
    """The client's end of one running batch: its segments, and the connection to it, made when it is needed."""

    def __init__(self, core: Core, poll: "select.poll", lock: "threading.RLock") -> None:
        self._core = core
        self._poll = poll
        self._lock = lock
        self._connection: Connection[BatchCommand, BatchReport] | None = None
        self.running: dict[int, QueuedSegment] = {}
        """Sent, and in the batch as far as is known, by id; one that is cancelled leaves with the next report."""

        self.ahead: dict[int, QueuedSegment] = {}
        """Sent to be encoded before they join a batch, by id; they wait in the queue."""

        self.dropped_ids: list[int] = []
        """Segments that are no longer wanted here, which the core does not know yet."""

        self.is_backlogged = False
        """Whether it was as large as it may be after its last report, while more waited."""

        self.load = BatchLoad()
        self.reported_at_s = -math.inf
        """When it last reported, or was begun."""

    @property
    def fileno(self) -> int:
        """Of the connection; -1 without one."""
        return -1 if self._connection is None else self._connection.fileno()

    def add(self, pending: QueuedSegment) -> None:
        """Count a segment that is about to be sent."""
        self.running[pending.segment_id] = pending
        self.load = self.load.plus(pending.segment)

    def leave(self, segment_id: int) -> QueuedSegment | None:
        """Return a segment that is in the batch no more; None if it was not."""
        with self._lock:
            if pending := self.running.pop(segment_id, None):
                self.load = BatchLoad.of(other.segment for other in self.running.values())
            return pending

    def find(self, segment_id: int) -> QueuedSegment | None:
        """Return a segment that is in the batch or was sent ahead."""
        return self.running.get(segment_id) or self.ahead.get(segment_id)

    def leave_answered(self) -> None:
        """Let segments leave that were cancelled, or answered otherwise."""
        with self._lock:
            for pending in [one for one in self.running.values() if one.done()]:
                self.leave(pending.segment_id)
                if not pending.is_end_noted:  # who notes it will not find it here any more
                    self.dropped_ids.append(pending.segment_id)

    def send(self, command: BatchCommand) -> None:
        """Send a command, over a new connection if the last one has ended while the batch was empty."""
        num_others = sum(not one.done() for one in self.running.values()) - len(command.new_segments)
        hung_up = {fileno for fileno, events in self._poll.poll(0) if events & select.POLLHUP}
        if num_others <= 0 and self.fileno in hung_up:
            self.disconnect()
        if self._connection is None and command.new_segments:
            self._connection = self._core.connect()
            self._poll.register(self._connection.fileno(), select.POLLIN)
        if self._connection is not None:
            self._connection.send(command)

    def receive(self) -> BatchReport | None:
        """Return the next report; None if the connection has ended while the batch was empty."""
        try:
            return self._connection.recv() if self._connection else None
        except (EOFError, OSError):
            if not all(one.done() for one in self.running.values()):
                raise
            self.disconnect()
            return None

    def disconnect(self) -> None:
        """Let the core forget the batch; the next command goes to an empty one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._poll.unregister(connection.fileno())
            connection.close()
        self.leave_answered()
