"""What is no gRPC: other protocols, noise, and frames that HTTP/2 forbids."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

from loadtests.chaos import http2

TLS_HELLO: Final = bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + bytes(120)
"""As a client begins that takes the port for one with TLS."""

_HELLO: Final = http2.PREFACE + http2.settings()
_MAX_NOISE_BYTES: Final = 4096


def _noise(generator: random.Random) -> bytes:
    return generator.randbytes(generator.randint(1, _MAX_NOISE_BYTES))


def _noise_after_hello(generator: random.Random) -> bytes:
    return _HELLO + _noise(generator)


def _http1(_: random.Random) -> bytes:
    return b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _tls(_: random.Random) -> bytes:
    return TLS_HELLO


def _random_frames(generator: random.Random) -> bytes:
    """Frames of any kind on any stream, with payloads that fit their lengths."""
    return _HELLO + b"".join(
        http2.frame(
            generator.randrange(256),
            generator.randbytes(generator.randrange(64)),
            flags=generator.randrange(256),
            stream=generator.randrange(8),
        )
        for _ in range(generator.randint(1, 50))
    )


def _length_that_lies(generator: random.Random) -> bytes:
    return _HELLO + http2.frame(generator.choice((http2.DATA, http2.HEADERS)), b"x", stream=1, length=2**24 - 1)


def _continuation_of_nothing(_: random.Random) -> bytes:
    return _HELLO + http2.frame(http2.CONTINUATION, b"", stream=1, flags=http2.END_HEADERS)


def _data_of_nothing(_: random.Random) -> bytes:
    return _HELLO + http2.data_frames(b"x" * 100, stream=99)


def _window_overflow(_: random.Random) -> bytes:
    return _HELLO + 3 * http2.frame(http2.WINDOW_UPDATE, struct.pack(">I", 2**31 - 1))


def _even_stream(_: random.Random) -> bytes:
    return _HELLO + http2.headers_frames(http2.grpc_headers("/x/Y"), stream=2)


def _broken_headers(generator: random.Random) -> bytes:
    block = bytes([0xFF]) * generator.randint(1, 100)  # an index beyond any table
    return _HELLO + http2.headers_frames(block, stream=1)


def _settings_out_of_range(_: random.Random) -> bytes:
    return _HELLO + http2.settings({http2.SETTING_INITIAL_WINDOW_SIZE: 2**32 - 1})


def _unknown_method(_: random.Random) -> bytes:
    return (
        _HELLO + http2.headers_frames(http2.grpc_headers("/" + "x" * 1000), stream=1) + http2.data_frames(b"", stream=1)
    )


KINDS: Final[Sequence[Callable[[random.Random], bytes]]] = (
    _noise,
    _noise_after_hello,
    _http1,
    _tls,
    _random_frames,
    _length_that_lies,
    _continuation_of_nothing,
    _data_of_nothing,
    _window_overflow,
    _even_stream,
    _broken_headers,
    _settings_out_of_range,
    _unknown_method,
)
"""Each makes something of a random generator."""
