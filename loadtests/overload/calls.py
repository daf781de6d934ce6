"""Sending calls and noting what became of each: raw bytes over gRPC's own threads, nothing awaited, nothing parsed."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import grpc

from loadtests import wire
from loadtests.records import CallRecord

_NUM_CHANNELS: Final = 4
"""Connections; each has its own thread in the client."""


class Caller:
    """Sends calls over several connections; `wait` returns what became of all."""

    def __init__(self, target: str, requests: Sequence[bytes]) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channels = [grpc.insecure_channel(target, options=options) for _ in range(_NUM_CHANNELS)]
        self._methods: list[Any] = [channel.unary_unary(wire.TRANSLATE) for channel in self._channels]
        self._requests = requests
        self._num_sent = 0
        self._records: list[CallRecord] = []
        self._all_ended = threading.Condition()

    def send(self, planned_s: float, *, timeout_s: float) -> None:
        """Begin a call whose deadline counts from when it should have been sent."""
        index, self._num_sent = self._num_sent, self._num_sent + 1
        method = self._methods[index % len(self._methods)]
        sent_s = time.monotonic()
        call = method.future(self._requests[index % len(self._requests)], timeout=timeout_s - (sent_s - planned_s))
        call.add_done_callback(partial(self._note, planned_s, sent_s))

    def wait(self, timeout_s: float) -> list[CallRecord]:
        """Wait until every call has ended; return the records in the order of their ends.

        Raises:
            TimeoutError: if some have not ended by then.
        """
        with self._all_ended:
            if not self._all_ended.wait_for(lambda: len(self._records) == self._num_sent, timeout_s):
                raise TimeoutError(f"{self._num_sent - len(self._records)} calls have not ended after {timeout_s:g} s")
            return list(self._records)

    def wait_below(self, num_open: int, timeout_s: float) -> bool:
        """Wait until fewer calls than this are under way; return False if time ran out first."""
        with self._all_ended:
            return self._all_ended.wait_for(lambda: self._num_sent - len(self._records) < num_open, timeout_s)

    def __enter__(self) -> Self:
        for channel in self._channels:
            grpc.channel_ready_future(channel).result(timeout=10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels:
            channel.close()

    def _note(self, planned_s: float, sent_s: float, call: Any) -> None:
        ended_s = time.monotonic()
        outcome, status = wire.outcome(call)
        record = CallRecord(planned_s=planned_s, sent_s=sent_s, ended_s=ended_s, outcome=outcome, status=status)
        with self._all_ended:
            self._records.append(record)
            self._all_ended.notify_all()
