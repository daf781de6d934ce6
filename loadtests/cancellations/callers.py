"""Callers who leave: each a thread that makes one call after the other.

They use gRPC's threaded client: its asynchronous one leaks a little memory with each call that is cancelled while an
answer is awaited (grpc/grpc#43360), and so would show growth of its own.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import grpc

from loadtests import wire
from loadtests.cancellations.plan import Method, Moment, PlannedCall

_TIMEOUT_S: Final = 60.0
"""Deadline of each call; nothing comes near it unless the server forgets somebody."""


class Caller:
    """Makes calls on one connection, one at a time; counts how they ended."""

    def __init__(self, channel: grpc.Channel, requests: wire.Requests, usual_s: float) -> None:
        """`usual_s` is how long an answer takes."""
        self._unary: Any = channel.unary_unary(wire.TRANSLATE)
        self._document: Any = channel.unary_stream(wire.TRANSLATE_DOCUMENT)
        self._stream: Any = channel.stream_stream(wire.TRANSLATE_STREAM)
        self._requests = requests
        self._usual_s = usual_s
        self._num_calls = 0
        self.ends: Counter[str] = Counter()
        """Names of statuses."""

        self.unanswered: list[str] = []
        """What went wrong with calls that were not answered as they should have been."""

    def make(self, planned: PlannedCall) -> None:
        """Make a call, leave as planned, and wait until it has ended."""
        self._num_calls += 1
        has_left = threading.Event()
        call = self._begin(planned, has_left)
        try:
            self._leave(call, planned)
            code = _code(call)
        finally:
            has_left.set()
        self.ends[code.name] += 1
        if code is not grpc.StatusCode.OK and (planned.moment is Moment.NEVER or code is not grpc.StatusCode.CANCELLED):
            self.unanswered.append(f"{planned.method.value}, left {planned.moment.value}: {code.name} {call.details()}")

    def _begin(self, planned: PlannedCall, has_left: threading.Event) -> Any:
        match planned.method:
            case Method.UNARY:
                return self._unary.future(self._requests.unary(self._num_calls), timeout=_TIMEOUT_S)
            case Method.DOCUMENT:
                return self._document(self._requests.document(self._num_calls), timeout=_TIMEOUT_S)
            case Method.STREAM:
                return self._stream(self._sent(planned, has_left), timeout=_TIMEOUT_S)

    def _sent(self, planned: PlannedCall, has_left: threading.Event) -> Iterator[bytes]:
        yield from self._requests.stream(self._num_calls)
        if not planned.half_closes:
            has_left.wait()

    def _leave(self, call: Any, planned: PlannedCall) -> None:
        if planned.moment is Moment.NEVER:
            _read_all(call, planned.method)
            return
        if planned.moment is Moment.ANSWERING and planned.method is not Method.UNARY:
            _read_first(call)
        else:
            time.sleep(planned.delay_share * self._usual_s)
        call.cancel()


def _read_first(call: Any) -> None:
    try:
        next(call, None)
    except grpc.RpcError:
        return  # its status is looked at later


def _read_all(call: Any, method: Method) -> None:
    if method is Method.UNARY:
        call.exception()
        return
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        return


def _code(call: Any) -> grpc.StatusCode:
    """Wait until a call has ended; return its status."""
    code: grpc.StatusCode = call.code()
    return code
