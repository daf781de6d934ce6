"""HTTP/2 for clients that misbehave: h2 where a call is a good one, hyperframe and bytes for all else."""

import contextlib
import functools
import random
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO: Final = PREFACE + SettingsFrame().serialize()  # how a client begins that accepts all defaults
TLS_HELLO: Final = bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + bytes(120)
"""How a client begins that expects TLS."""

_TIMEOUT_S: Final = 10.0
Headers = Sequence[tuple[str, str]]


def call_headers(path: str, timeout_s: float = 60.0) -> Headers:
    """Return the headers that begin a call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    return [*headers, ("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", f"{timeout_s:.0f}S")]


def grpc_message(message: bytes, *, length: int | None = None) -> bytes:
    """Return a message with its prefix, which says `length`, by default the truth."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message


class RawConnection(H2Connection):
    """A connection that can speak HTTP/2, or anything; whatever the server does to it is no error here."""

    def __init__(self, target: str, *, window_bytes: int | None = None) -> None:
        """Connect, say nothing yet; with a window of 0 the server may send statuses, and not a byte of data."""
        super().__init__(H2Configuration(validate_outbound_headers=False))
        plainly = functools.partial(self.encoder.encode, huffman=False)  # Huffman's code takes minutes for a megabyte
        self.encoder.encode = plainly  # type: ignore[method-assign]
        self.initiate_connection()
        if window_bytes is not None:
            self.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_closed = False

    def begin(self) -> Self:
        """Begin as an HTTP/2 client does, and acknowledge the server's settings."""
        self.flush()
        any(isinstance(event, RemoteSettingsChanged) for event in self.events(_TIMEOUT_S))
        self.flush()
        return self

    def call(self, path: str, content: bytes, *, timeout_s: float = 60, extra: Headers = (), ends: bool = True) -> int:
        """Send a call, with extra headers, all of it unless told otherwise; return the number of its stream."""
        stream = self.get_next_available_stream_id()
        self.send_headers(stream, [*call_headers(path, timeout_s), *extra])
        for begin in range(0, len(content), self.max_outbound_frame_size):
            self.send_data(stream, content[begin : begin + self.max_outbound_frame_size])
        if ends:
            self.end_stream(stream)
        self.flush()
        return stream

    def flush(self) -> None:
        """Send what h2 has to say."""
        self.send(self.data_to_send())

    def send(self, content: bytes) -> None:
        """Send, unless the server closes the connection, or reads nothing for 10 s."""
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.sendall(content)
        except OSError as error:  # what it said before it closed can still be read
            self.is_closed |= isinstance(error, TimeoutError)

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Yield what the server says until it says nothing for so long, or closes the connection."""
        while not self.is_closed and (received := self._received(timeout_s)):
            with contextlib.suppress(H2Error):  # it answers what was not said by h2
                yield from self.receive_data(received)

    def reply(self, timeout_s: float) -> str:
        """Return what becomes of a call, or of the connection: what it is told, or the error that ends it, by name."""
        for event in self.events(timeout_s):
            if isinstance(event, DataReceived):
                return "answered"
            if isinstance(event, StreamReset | StreamEnded):
                return "rejected"
            if isinstance(event, ConnectionTerminated):
                return getattr(event.error_code, "name", str(event.error_code))
        return "closed" if self.is_closed else "ignored"

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
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()

    def _received(self, timeout_s: float) -> bytes:
        """Return what has come; empty if nothing did."""
        self._socket.settimeout(max(timeout_s, 0.001))
        content = b""
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                content = self._socket.recv(65_536)
            self.is_closed = not content
        return content


def garbage(number: int) -> dict[str, bytes]:
    """Return, by number, one of each kind of what is no gRPC: other protocols, noise, frames that HTTP/2 forbids."""
    draw = random.Random(number)
    frames = [
        _frame(draw.choice((draw.randint(0, 9), draw.randint(0, 255))), draw.randbytes(draw.randint(0, 63)), draw)
        for _ in range(draw.randint(1, 50))
    ]
    liar = draw.choice((DataFrame(1, b"x"), HeadersFrame(1, b"x")))
    good_headers = HeadersFrame(2, Encoder().encode(call_headers("/x/Y")), flags=["END_HEADERS"])
    unknown_method = HeadersFrame(1, Encoder().encode(call_headers("/" + "x" * 1000)), flags=["END_HEADERS"])
    after_hello = {
        "noise-after-hello": draw.randbytes(draw.randint(1, 4096)),
        "random-frames": b"".join(frames),
        "length-that-lies": b"\xff\xff\xff" + liar.serialize()[3:],
        "continuation-of-nothing": ContinuationFrame(1, flags=["END_HEADERS"]).serialize(),
        "data-of-nothing": DataFrame(99, b"x" * 100, flags=["END_STREAM"]).serialize(),
        "window-overflow": 3 * WindowUpdateFrame(0, 2**31 - 1).serialize(),
        "even-stream": good_headers.serialize(),
        "broken-headers": HeadersFrame(1, b"\xff" * draw.randint(1, 100), flags=["END_HEADERS"]).serialize(),
        "settings-out-of-range": SettingsFrame(settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**32 - 1}).serialize(),
        "unknown-method": unknown_method.serialize() + DataFrame(1, flags=["END_STREAM"]).serialize(),
    }
    return {
        "noise": draw.randbytes(draw.randint(1, 4096)),
        "http1": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "tls": TLS_HELLO,
        **{kind: HELLO + content for kind, content in after_hello.items()},
    }


def _frame(kind: int, payload: bytes, draw: random.Random) -> bytes:
    """Return a frame of any kind, unknown ones too, with any flags, of any stream."""
    return struct.pack(">IBI", len(payload) << 8 | kind, draw.randint(0, 255), draw.randint(0, 7)) + payload
