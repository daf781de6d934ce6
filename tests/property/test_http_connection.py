"""The answers of an HTTP connection do not depend on how the network splits the requests."""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from loadtests.hostile.mutations import mutated
from tests.captured_logs import capture_logs
from tests.http_wire import CHUNKED, GET, Recorder, Wire, statuses

SEEDS = (
    GET + GET,
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc" + GET,
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc" + GET,
    CHUNKED + b"3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n" + GET,
    b"GET / HTTP/1.0\r\n\r\n",
)
TOKENS = (
    *(b"\r\n", b"\n", b"\0", b" ", b":", b"\xff", b"GET", b"CONNECT", b"HTTP/1.0", b"Host: a\r\n", b"0\r\n\r\n", GET),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"1\r\na\r\n"),
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
)


async def answered(*parts: bytes) -> tuple[list[int], list[bytes]]:
    """Send parts one after the other; return the statuses of the answers, and the bodies of the requests."""
    app = Recorder()
    wire = Wire(app)
    sent = await wire.send(*parts)
    wire.connection.connection_lost(None)
    await wire.settle()
    assert not wire.connection.is_answering
    return statuses(sent), app.bodies


@example(content=20 * GET + GET[1:] + GET, places=[len(GET)])
@given(mutated(SEEDS, TOKENS), st.lists(st.integers(0, 400), max_size=4))
def test_answers_do_not_depend_on_how_requests_are_split(content: bytes, places: list[int]) -> None:
    content = content[:3000]  # fewer bytes than a connection reads at a time
    ends = sorted(place for place in places if 0 < place < len(content))
    parts = [content[start:end] for start, end in zip([0, *ends], [*ends, len(content)], strict=True)]

    with capture_logs() as records:
        whole = asyncio.run(answered(content))
        assert asyncio.run(answered(*filter(None, parts))) == whole

    assert not records
