"""HTTP/2 for clients that misbehave: h2 where a call is a good one, hyperframe and bytes for all else."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    HeadersFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import strategies as st

from loadtests.stress.drawing import drawn

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO: Final = PREFACE + SettingsFrame().serialize()
"""How a client begins that accepts all defaults."""

TLS_HELLO: Final = bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + bytes(120)
"""How a client begins that expects TLS."""

_FRAME_BYTES: Final = 16_384
"""Largest payload that a peer accepts unless it says otherwise."""

_CONNECT_TIMEOUT_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def call_headers(
    path: str, *, timeout_s: float | None = None, extra: Iterable[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Return the headers that begin a call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    if timeout_s is not None:
        headers.append(("grpc-timeout", f"{round(timeout_s * 1000)}m"))
    return [*headers, *extra]


def grpc_message(message: bytes, *, length: int | None = None) -> bytes:
    """Return a message with its prefix, which says `length`, by default the truth."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message


class _PlainEncoder(Encoder):
    """Writes text as it is: Huffman's code would take minutes for a megabyte."""

    def encode(self, headers: Any, huffman: bool = False) -> bytes:  # noqa: ARG002, FBT
        return super().encode(headers, huffman=False)


class Protocol(H2Connection):
    """What a client says, returned by `data_to_send`: first the preface."""

    def __init__(self, *, window_bytes: int = 65_535) -> None:
        """Begin; with a window of 0 the server may send statuses, and not a byte of data."""
        super().__init__(H2Configuration(validate_outbound_headers=False))
        self.encoder = _PlainEncoder()
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
        self.local_settings = Settings(client=True, initial_values=settings)
        self.initiate_connection()

    def call(self, path: str, content: bytes, *, ends: bool = True, **headers: Any) -> int:
        """Say all of a call, headers as of `call_headers` and content; return the number of its stream."""
        stream = self.get_next_available_stream_id()
        self.send_headers(stream, call_headers(path, **headers))
        for begin in range(0, len(content), _FRAME_BYTES):
            self.send_data(stream, content[begin : begin + _FRAME_BYTES])
        if ends:
            self.end_stream(stream)
        return stream


class RawConnection:
    """A connection that can speak HTTP/2, or anything; whatever the server does to it is no error here."""

    def __init__(self, target: str, *, window_bytes: int = 65_535) -> None:
        """Connect.

        Raises:
            OSError: if nothing listens there, or no port of this machine is free.
        """
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.http2 = Protocol(window_bytes=window_bytes)
        self.is_closed = False

    def begin(self) -> None:
        """Begin as an HTTP/2 client does, and acknowledge the server's settings."""
        self.flush()
        any(isinstance(event, RemoteSettingsChanged) for event in self.events(_CONNECT_TIMEOUT_S))
        self.flush()

    def flush(self) -> bool:
        """Send what `http2` has to say."""
        return self.send(self.http2.data_to_send())

    def send(self, content: bytes) -> bool:
        """Send; False if the server has closed the connection or reads nothing for 10 s."""
        try:
            self._socket.sendall(content)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Yield what the server says until it says nothing for so long, or closes the connection."""
        while not self.is_closed and (received := self._received(timeout_s)):
            with contextlib.suppress(H2Error):  # it answers what was not said by `http2`
                yield from self.http2.receive_data(received)

    def reply(self, timeout_s: float) -> set[type[Event]]:
        """Return the types of what is said of a call, up to its end or that of the connection."""
        types: set[type[Event]] = set()
        for event in self.events(timeout_s):
            types.add(type(event))
            if isinstance(event, (StreamEnded, StreamReset, ConnectionTerminated)):
                break
        return types

    def goaways(self, timeout_s: float) -> list[str]:
        """Return the names of the errors with which the server gives up the connection."""
        codes = [event.error_code for event in self.events(timeout_s) if isinstance(event, ConnectionTerminated)]
        return [getattr(code, "name", str(code)) for code in codes]

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Read and throw away until the server closes the connection; False if it has not in time."""
        until_s = time.monotonic() + timeout_s
        while not self.is_closed and (left_s := until_s - time.monotonic()) > 0:
            self._received(left_s)
        return self.is_closed

    def close(self, *, with_reset: bool = True) -> None:
        """Close; with a reset, at once and without the wait that keeps the port."""
        with contextlib.suppress(OSError):
            if with_reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._socket.close()

    def _received(self, timeout_s: float) -> bytes:
        """Return what has come; empty if nothing did."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            content = self._socket.recv(65_536)
            self.is_closed = not content
        except TimeoutError:
            return b""
        except OSError:
            self.is_closed = True
            return b""
        finally:
            self._socket.settimeout(_CONNECT_TIMEOUT_S)
        return content


def _random_bytes(most: int) -> st.SearchStrategy[bytes]:
    return st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0), st.integers(1, most))


def _any_frame(kind: int, payload: bytes, flags: int, stream: int) -> bytes:
    """Return a frame of any type, forbidden ones too."""
    frame = ExtensionFrame(kind, stream, flags, payload)
    frame.body_len = len(payload)
    return frame.serialize()


def _after_hello(*contents: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([HELLO + content for content in contents])


def _call_frame(path: str, *, stream: int = 1) -> bytes:
    return HeadersFrame(stream, Encoder().encode(call_headers(path)), flags=["END_HEADERS"]).serialize()


_ANY_FRAME: Final = st.builds(
    _any_frame, st.integers(0, 255), st.binary(max_size=63), st.integers(0, 255), st.integers(0, 7)
)
_LYING_LENGTH: Final = b"\xff\xff\xff"

GARBAGE: Final[Mapping[str, st.SearchStrategy[bytes]]] = {
    "noise": _random_bytes(4096),
    "noise-after-hello": _random_bytes(4096).map(HELLO.__add__),
    "http1": st.just(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "tls": st.just(TLS_HELLO),
    "random-frames": st.lists(_ANY_FRAME, min_size=1, max_size=50).map(lambda frames: HELLO + b"".join(frames)),
    "length-that-lies": _after_hello(
        _LYING_LENGTH + DataFrame(1, b"x").serialize()[3:], _LYING_LENGTH + HeadersFrame(1, b"x").serialize()[3:]
    ),
    "continuation-of-nothing": _after_hello(ContinuationFrame(1, flags=["END_HEADERS"]).serialize()),
    "data-of-nothing": _after_hello(DataFrame(99, b"x" * 100, flags=["END_STREAM"]).serialize()),
    "window-overflow": _after_hello(3 * WindowUpdateFrame(0, 2**31 - 1).serialize()),
    "even-stream": _after_hello(_call_frame("/x/Y", stream=2)),
    "broken-headers": st.integers(1, 100).map(  # there is no such index
        lambda size: HELLO + HeadersFrame(1, b"\xff" * size, flags=["END_HEADERS"]).serialize()
    ),
    "settings-out-of-range": _after_hello(
        SettingsFrame(settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**32 - 1}).serialize()
    ),
    "unknown-method": _after_hello(_call_frame("/" + "x" * 1000) + DataFrame(1, flags=["END_STREAM"]).serialize()),
}
"""What is no gRPC, by kind: other protocols, noise, and frames that HTTP/2 forbids."""


def garbage(kind: str, number: int) -> bytes:
    """Return garbage of a kind, the same for the same number."""
    return drawn(lambda draw: bytes(draw(GARBAGE[kind])), entropy=f"{kind}/{number}")
