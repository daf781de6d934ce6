"""HTTP/2 as bytes (RFC 9113), for clients that misbehave in ways that no library allows.

Header blocks (RFC 7541) are written without Huffman coding and tables, and never read.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
MAX_FRAME_BYTES: Final = 16_384
"""Largest payload that a peer takes unless it says otherwise."""

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8, 0x9
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1

SETTING_INITIAL_WINDOW_SIZE: Final = 0x4
CANCEL: Final = 0x8
ERROR_NAMES: Final = {
    0x0: "NO_ERROR",
    0x1: "PROTOCOL_ERROR",
    0x2: "INTERNAL_ERROR",
    0x3: "FLOW_CONTROL_ERROR",
    0x5: "STREAM_CLOSED",
    0x6: "FRAME_SIZE_ERROR",
    0x7: "REFUSED_STREAM",
    0x8: "CANCEL",
    0x9: "COMPRESSION_ERROR",
    0xB: "ENHANCE_YOUR_CALM",
}
"""Of GOAWAY and RST_STREAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame as it was received."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        """Whether nothing comes after it on its stream."""
        return self.kind in {DATA, HEADERS} and bool(self.flags & END_STREAM)

    @property
    def error(self) -> str:
        """Name of the error code of a GOAWAY or RST_STREAM."""
        (code,) = struct.unpack_from(">I", self.payload, 4 if self.kind == GOAWAY else 0)
        return ERROR_NAMES.get(code, f"{code:#x}")


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, length: int | None = None) -> bytes:
    """Return a frame; `length` is what it says of its payload, by default the truth."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: dict[int, int] | None = None) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, b"".join(struct.pack(">HI", key, value) for key, value in (values or {}).items()))


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers, each as a literal that no table keeps."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def grpc_headers(path: str, *, timeout_s: float | None = None, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the header block that begins a call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    if timeout_s is not None:
        headers.append(("grpc-timeout", f"{round(timeout_s * 1000)}m"))
    return header_block([*headers, *extra])


def headers_frames(block: bytes, *, stream: int, flags: int = 0) -> bytes:
    """Return a header block as one HEADERS frame and as many CONTINUATIONs as it needs."""
    first, rest = block[:MAX_FRAME_BYTES], block[MAX_FRAME_BYTES:]
    pieces = [rest[begin : begin + MAX_FRAME_BYTES] for begin in range(0, len(rest), MAX_FRAME_BYTES)]
    frames = [frame(HEADERS, first, flags=flags | (0 if pieces else END_HEADERS), stream=stream)]
    for index, piece in enumerate(pieces, 1):
        frames.append(frame(CONTINUATION, piece, flags=END_HEADERS if index == len(pieces) else 0, stream=stream))
    return b"".join(frames)


def grpc_message(message: bytes, *, length: int | None = None) -> bytes:
    """Return a message with its prefix, which says `length`, by default the truth."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message


def data_frames(content: bytes, *, stream: int, flags: int = END_STREAM) -> bytes:
    """Return content as DATA frames, the last one with the flags."""
    pieces = [content[begin : begin + MAX_FRAME_BYTES] for begin in range(0, len(content), MAX_FRAME_BYTES)] or [b""]
    return b"".join(
        frame(DATA, piece, flags=flags if index == len(pieces) else 0, stream=stream)
        for index, piece in enumerate(pieces, 1)
    )


def frames_of(received: bytes) -> tuple[list[Frame], bytes]:
    """Return the whole frames of what was received, and the rest."""
    found = []
    while len(received) >= FRAME_HEADER_BYTES:
        size = int.from_bytes(received[:3], "big")
        if len(received) < FRAME_HEADER_BYTES + size:
            break
        kind, flags, stream = struct.unpack_from(">BBI", received, 3)
        payload = received[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + size]
        found.append(Frame(kind=kind, flags=flags, stream=stream & 0x7FFFFFFF, payload=payload))
        received = received[FRAME_HEADER_BYTES + size :]
    return found, received


def _string(text: str) -> bytes:
    raw = text.encode()
    return _integer(len(raw)) + raw


def _integer(value: int) -> bytes:
    """Return a length with a 7-bit prefix (RFC 7541, 5.1), not Huffman coded."""
    if value < 0x7F:
        return bytes([value])
    encoded, value = bytearray([0x7F]), value - 0x7F
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
