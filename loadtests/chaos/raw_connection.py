"""A TCP connection on which anything can be sent, whole or in part, and read or not."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from loadtests.chaos import http2

_CONNECT_TIMEOUT_S: Final = 10.0
_RECEIVE_BYTES: Final = 65_536
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class RawConnection:
    """A connection that speaks no protocol by itself; whatever the server does to it is no error of ours."""

    def __init__(self, target: str) -> None:
        """Connect.

        Raises:
            OSError: if nobody listens, or no port of this machine is free.
        """
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.is_closed = False
        """Whether the server has closed it."""

    def begin(self, settings: dict[int, int] | None = None) -> None:
        """Say hello as an HTTP/2 client does, and agree to what the server says of itself."""
        self.send(http2.PREFACE + http2.settings(settings))
        for frame in self.frames(_CONNECT_TIMEOUT_S):
            if frame.kind == http2.SETTINGS and not frame.flags & http2.ACK:
                self.send(http2.frame(http2.SETTINGS, flags=http2.ACK))
                return

    def send(self, content: bytes) -> bool:
        """Send; False if the server has closed the connection or takes nothing for 10 s."""
        try:
            self._socket.sendall(content)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def frames(self, timeout_s: float) -> Iterator[http2.Frame]:
        """Yield frames as they come until nothing comes for so long, or the server closes the connection."""
        while True:
            found, self._received = http2.frames_of(self._received)
            yield from found
            if self.is_closed or not self._receive(timeout_s):
                return

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Read and throw away until the server closes the connection; False if it has not in time."""
        until_s = time.monotonic() + timeout_s
        while not self.is_closed and (left_s := until_s - time.monotonic()) > 0:
            self._receive(left_s)
            self._received = b""
        return self.is_closed

    def close(self, *, with_reset: bool = False) -> None:
        """Close; with a reset, at once and without the wait that keeps the port."""
        with contextlib.suppress(OSError):
            if with_reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(with_reset=True)

    def _receive(self, timeout_s: float) -> bool:
        """Take what has come; False if nothing did."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            content = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return False
        except OSError:
            content = b""
        finally:
            self._socket.settimeout(_CONNECT_TIMEOUT_S)
        self.is_closed = not content
        self._received += content
        return bool(content)
