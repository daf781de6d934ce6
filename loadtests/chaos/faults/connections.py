"""Connections that come to nothing: opened and dropped, half open, and slow on purpose."""

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from loadtests import wire
from loadtests.chaos import http2
from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.garbage import TLS_HELLO
from loadtests.chaos.limits import Limits
from loadtests.chaos.raw_connection import RawConnection
from loadtests.chaos.venue import HANDSHAKE_TIMEOUT_S

_MOST_OPEN: Final = 200
"""Connections at a time, far below what the server takes: others must find room."""

_MAX_PER_S: Final = 1000.0
"""Rate at which they are opened."""

_FILES: Final = "process_open_fds"
_DRIP_EACH_S: Final = 0.2
_SLOW_TIMEOUT_S: Final = 600.0
_SHARE_SEEN: Final = 0.5
_CLOSING_SLACK_S: Final = 4.0


def _say_nothing(_: RawConnection, __: bytes) -> None:
    return


def _say_preface(connection: RawConnection, _: bytes) -> None:
    connection.send(http2.PREFACE)


def _say_half_a_preface(connection: RawConnection, _: bytes) -> None:
    connection.send(http2.PREFACE[:10])


def _speak_tls(connection: RawConnection, _: bytes) -> None:
    connection.send(TLS_HELLO)


def _begin(connection: RawConnection, _: bytes) -> None:
    connection.send(http2.PREFACE + http2.settings())


def _call(connection: RawConnection, request: bytes) -> None:
    """Make a call and leave before it is answered."""
    _begin(connection, request)
    connection.send(http2.headers_frames(http2.grpc_headers(wire.Method.TRANSLATE.path), stream=1))
    connection.send(http2.data_frames(http2.grpc_message(request), stream=1))


_WAYS: Final[Sequence[Callable[[RawConnection, bytes], None]]] = (
    _say_nothing,
    _say_preface,
    _say_half_a_preface,
    _speak_tls,
    _begin,
    _call,
)


def _open_and_drop(stage: Stage) -> str:
    """Open connections at a bounded rate, a couple of hundred at a time, each dropped in one of two ways."""
    open_now: deque[RawConnection] = deque()
    most_files = files_before = stage.samples(_FILES)
    began_s = time.monotonic()
    try:
        for number, way in zip(range(stage.scale.num_connections), itertools.cycle(_WAYS)):
            connection = RawConnection(stage.target)
            open_now.append(connection)
            way(connection, stage.questions[number % len(stage.questions)].request)
            if len(open_now) >= _MOST_OPEN:
                if number % _MOST_OPEN == 0:
                    most_files = max(most_files, stage.samples(_FILES))
                open_now.popleft().close(with_reset=number % 4 != 0)
            _keep_rate(number + 1, began_s)
        most_files = max(most_files, stage.samples(_FILES))
    finally:
        for connection in open_now:
            connection.close(with_reset=True)
    stage.hits["dropped"] += stage.scale.num_connections
    return f"{_FILES}{most_files - files_before:+.0f}" if most_files > files_before else ""


def _keep_rate(num_opened: int, began_s: float) -> None:
    ahead_s = num_opened / _MAX_PER_S - (time.monotonic() - began_s)
    if ahead_s > 0:
        time.sleep(ahead_s)


def _drip(stage: Stage) -> str:
    """Keep hundreds of connections that send a byte now and then; others, new ones too, are served all the time."""
    generator = random.Random(1)
    files_before = stage.samples(_FILES)
    with ExitStack() as stack:
        slow = [
            _Slow(stack.enter_context(RawConnection(stage.target)), kind, stage.questions[0].request)
            for kind in itertools.islice(itertools.cycle(_KINDS), stage.scale.num_slow)
        ]
        until_s = time.monotonic() + max(stage.scale.slow_s, HANDSHAKE_TIMEOUT_S + 1)
        num_files = stage.samples(_FILES) - files_before
        while time.monotonic() < until_s:
            for connection in generator.sample(slow, len(slow)):
                connection.drip()
            with Client(stage.target) as newcomer:
                status = judged(newcomer.translate(stage.questions[0].request), stage.questions[0]).status
            stage.require(status == "OK", f"a new connection among slow ones was told {status}")
            time.sleep(_DRIP_EACH_S)
        silent = [connection for connection in slow if connection.kind == "preface"]
        num_ended = sum(connection.is_closed(_CLOSING_SLACK_S) for connection in silent)
    stage.hits["handshake_timeout"] += num_ended
    stage.require(
        num_ended == len(silent), f"{len(silent) - num_ended} connections that never said hello were still open"
    )
    return f"{_FILES}{num_files:+.0f}" if num_files > _SHARE_SEEN * stage.scale.num_slow else ""


_KINDS: Final = ("preface", "headers", "continuation", "body")


class _Slow:
    """A connection that never finishes what it has begun."""

    def __init__(self, connection: RawConnection, kind: str, request: bytes) -> None:
        self.kind = kind
        self._connection = connection
        self._rest = deque(self._content(request))

    def drip(self) -> None:
        """Send a byte, unless there would be an end to it."""
        if self._rest and not self._connection.is_closed:
            self._connection.send(bytes([self._rest.popleft()]))

    def is_closed(self, timeout_s: float) -> bool:
        """Whether the server closes it in time."""
        return self._connection.wait_until_closed(timeout_s)

    def _content(self, request: bytes) -> bytes:
        """Begin as far as that is quick; return what is sent byte by byte."""
        path = wire.Method.TRANSLATE.path
        if self.kind == "preface":
            return http2.PREFACE[:-1]
        self._connection.begin()
        block = http2.grpc_headers(path, timeout_s=_SLOW_TIMEOUT_S)
        if self.kind == "headers":
            return http2.headers_frames(block, stream=1)[:-1]
        if self.kind == "continuation":
            self._connection.send(http2.frame(http2.HEADERS, block, stream=1))
            return http2.frame(http2.CONTINUATION, b"", stream=1) * len(block)
        self._connection.send(http2.headers_frames(block, stream=1))
        return http2.data_frames(http2.grpc_message(request), stream=1)[:-1]


DROPPED: Final = Fault(
    name="connections-dropped",
    summary="thousands of connections are opened and dropped, with and without a call",
    run=_open_and_drop,
    limits=Limits(max_bystander_s=8.0, max_file_growth=16),  # one of six makes a call: they are work, too
)
SLOW: Final = Fault(
    name="slow-loris",
    summary="hundreds of connections send a byte now and then: greetings, headers and bodies without an end",
    run=_drip,
    limits=Limits(max_file_growth=16),
)
