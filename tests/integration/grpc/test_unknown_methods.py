import asyncio
import contextlib
import socket

import grpc
import pytest
from hpack import Encoder

from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer

SERVICE = b"/dragoman.v1.TranslationService/"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_FLAGS, END_STREAM, END_HEADERS = 0, 1, 4
DATA, HEADERS, SETTINGS = 0, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def answer_to(port: int, path: bytes, timeout_s: float = TEST_TIMEOUT_S) -> bytes:
    """Call a method by raw bytes, which gRPC clients cannot send; return the frames up to the response."""
    fields = {":method": b"POST", ":scheme": b"http", ":path": path, ":authority": b"x", "te": b"trailers"}
    fields["content-type"] = b"application/grpc"
    block = Encoder().encode([(name.encode(), value) for name, value in fields.items()])
    call = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, bytes(5))
    answer = b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=timeout_s)) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, NO_FLAGS, 0) + call)
        while b"grpc-status" not in answer and (received := connection.recv(4096)):
            answer += received
    return answer


@pytest.mark.parametrize(
    "path", [b"\xe9", b"/dragoman.v1.TranslationService/\xff", b"/dragoman.v1.TranslationService/Translat", b"/a/b"]
)
async def test_unknown_method_with_any_path_is_unimplemented_and_others_are_answered(
    server: RunningServer, path: bytes
) -> None:
    answers = [await asyncio.to_thread(answer_to, server.port, path) for _ in range(3)]

    assert [answer for answer in answers if b"grpc-status\x0212" not in answer] == []
    assert len((await server.translate("A man.", timeout_s=TEST_TIMEOUT_S)).translations) == 1
    assert server.sample("dragoman_dropped_calls_total") == 0


async def test_grpcio_still_needs_the_workaround() -> None:
    """If this fails, a path that is not UTF-8 no longer stops a server of grpcio: `workarounds.Server` may go."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        assert b"grpc-status" in await asyncio.to_thread(answer_to, port, b"/a/b")
        answer = b""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(answer_to, port, b"\xe9", 2.0)
        with contextlib.suppress(OSError):
            answer = await asyncio.to_thread(answer_to, port, b"/a/b", 2.0)
        assert b"grpc-status" not in answer
    finally:
        await server.stop(None)
