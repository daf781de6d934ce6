"""HTTP/2 as bytes, for clients that misbehave: frames of hyperframe, header blocks of hpack, and a raw connection."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
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

NO_WINDOW: Final[dict[int, int]] = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
"""Settings with which the server may send statuses, and not a byte of data."""

MAX_FRAME_BYTES: Final = 16_384
"""Largest payload that a peer accepts unless it says otherwise."""

_FRAME_HEADER_BYTES: Final = 9
_CONNECT_TIMEOUT_S: Final = 10.0
_RECEIVE_BYTES: Final = 65_536
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def header_block(path: str, *, timeout_s: float | None = None, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the header block that begins a call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    if timeout_s is not None:
        headers.append(("grpc-timeout", f"{round(timeout_s * 1000)}m"))
    return Encoder().encode([*headers, *extra], huffman=False)


def headers_frames(block: bytes, *, stream: int = 1) -> bytes:
    """Return a header block as one HEADERS frame and as many CONTINUATIONs as it needs."""
    first, *rest = _pieces(block)
    frames: list[Frame] = [HeadersFrame(stream, first), *(ContinuationFrame(stream, piece) for piece in rest)]
    frames[-1].flags.add("END_HEADERS")
    return b"".join(frame.serialize() for frame in frames)


def grpc_message(message: bytes, *, length: int | None = None) -> bytes:
    """Return a message with its prefix, which says `length`, by default the truth."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message


def data_frames(content: bytes, *, stream: int = 1, ends: bool = True) -> bytes:
    """Return content as DATA frames, the last one with END_STREAM if the stream ends there."""
    frames = [DataFrame(stream, piece) for piece in _pieces(content)]
    if ends:
        frames[-1].flags.add("END_STREAM")
    return b"".join(frame.serialize() for frame in frames)


def any_frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame of any type, forbidden ones too."""
    frame = ExtensionFrame(kind, stream, flags, payload)
    frame.body_len = len(payload)
    return frame.serialize()


def call_frames(path: str, message: bytes, *, stream: int = 1, timeout_s: float | None = None) -> bytes:
    """Return all of a call."""
    block = header_block(path, timeout_s=timeout_s)
    return headers_frames(block, stream=stream) + data_frames(grpc_message(message), stream=stream)


def error_name(code: int) -> str:
    """Return the name of the error code of a GOAWAY or RST_STREAM."""
    return next((known.name for known in ErrorCodes if known == code), f"{code:#x}")


def frames_of(received: bytes) -> tuple[list[Frame], bytes]:
    """Return the whole frames of what was received, and the rest; all of it is dropped if it is no HTTP/2."""
    found: list[Frame] = []
    with contextlib.suppress(HyperframeError):
        while len(received) >= _FRAME_HEADER_BYTES:
            frame, length = Frame.parse_frame_header(memoryview(received)[:_FRAME_HEADER_BYTES])
            end = _FRAME_HEADER_BYTES + length
            if len(received) < end:
                return found, received
            frame.parse_body(memoryview(received)[_FRAME_HEADER_BYTES:end])
            found.append(frame)
            received = received[end:]
        return found, received
    return found, b""


class RawConnection:
    """A connection that speaks no protocol by itself; whatever the server does to it is no error here."""

    def __init__(self, target: str) -> None:
        """Connect.

        Raises:
            OSError: if nothing listens there, or no port of this machine is free.
        """
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.is_closed = False
        """Whether the server has closed it."""

    def begin(self, settings: dict[int, int] | None = None) -> None:
        """Begin as an HTTP/2 client does, and acknowledge the server's settings."""
        self.send(PREFACE + SettingsFrame(settings=settings).serialize())
        for frame in self.frames(_CONNECT_TIMEOUT_S):
            if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                self.send(SettingsFrame(flags=["ACK"]).serialize())
                return

    def send(self, content: bytes) -> bool:
        """Send; False if the server has closed the connection or reads nothing for 10 s."""
        try:
            self._socket.sendall(content)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def frames(self, timeout_s: float) -> Iterator[Frame]:
        """Yield frames as they come until nothing comes for so long, or the server closes the connection."""
        while True:
            found, self._received = frames_of(self._received)
            yield from found
            if self.is_closed or not self._receive(timeout_s):
                return

    def reply(self, timeout_s: float) -> set[type[Frame]]:
        """Return the types of the frames that answer stream 1, up to its end or that of the connection."""
        types: set[type[Frame]] = set()
        for frame in self.frames(timeout_s):
            if frame.stream_id == 1 or isinstance(frame, GoAwayFrame):
                types.add(type(frame))
                if "END_STREAM" in frame.flags or hasattr(frame, "error_code"):
                    break
        return types

    def goaways(self, timeout_s: float) -> list[str]:
        """Return the names of the errors with which the server gives up the connection."""
        return [error_name(frame.error_code) for frame in self.frames(timeout_s) if isinstance(frame, GoAwayFrame)]

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
        """Read what has come; False if nothing did."""
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


def _pieces(content: bytes) -> list[bytes]:
    return [content[begin : begin + MAX_FRAME_BYTES] for begin in range(0, len(content), MAX_FRAME_BYTES)] or [b""]


def _random_bytes(most: int) -> st.SearchStrategy[bytes]:
    return st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0), st.integers(1, most))


def _after_hello(*contents: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([HELLO + content for content in contents])


_ANY_FRAME: Final = st.builds(
    any_frame, st.integers(0, 255), st.binary(max_size=63), flags=st.integers(0, 255), stream=st.integers(0, 7)
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
    "data-of-nothing": _after_hello(data_frames(b"x" * 100, stream=99)),
    "window-overflow": _after_hello(3 * WindowUpdateFrame(0, 2**31 - 1).serialize()),
    "even-stream": _after_hello(headers_frames(header_block("/x/Y"), stream=2)),
    "broken-headers": st.integers(1, 100).map(lambda size: HELLO + headers_frames(b"\xff" * size)),  # no such index
    "settings-out-of-range": _after_hello(
        SettingsFrame(settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**32 - 1}).serialize()
    ),
    "unknown-method": _after_hello(headers_frames(header_block("/" + "x" * 1000)) + data_frames(b"")),
}
"""What is no gRPC, by kind: other protocols, noise, and frames that HTTP/2 forbids."""


def garbage(kind: str, number: int) -> bytes:
    """Return garbage of a kind, the same for the same number."""
    return drawn(lambda draw: bytes(draw(GARBAGE[kind])), entropy=f"{kind}/{number}")
