import asyncio
import contextlib
import socket

import grpc
import pytest
from hpack import Encoder

from tests.integration.running_server import PATIENCE_S, RunningServer, refusal

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_FLAGS, END_STREAM, END_HEADERS = 0, 1, 4
DATA, HEADERS, SETTINGS = 0, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def answer_to(port: int, path: bytes) -> bytes:
    """Call a method that a client of gRPC could not name; return all that comes before it is answered."""
    fields = {":method": b"POST", ":scheme": b"http", ":path": path, ":authority": b"x", "te": b"trailers"}
    fields["content-type"] = b"application/grpc"
    block = Encoder().encode([(name.encode(), value) for name, value in fields.items()])
    call = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, bytes(5))
    answer = b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, NO_FLAGS, 0) + call)
        while b"grpc-status" not in answer and (received := connection.recv(4096)):
            answer += received
    return answer


@pytest.mark.parametrize("path", [b"\xe9", b"/dragoman.v1.TranslationService/\xff", b"/a/b"])
async def test_a_method_that_is_not_there_is_refused_whatever_its_name_and_others_are_answered(
    server: RunningServer, path: bytes
) -> None:
    answers = [await asyncio.to_thread(answer_to, server.port, path) for _ in range(3)]

    assert [answer for answer in answers if b"grpc-status\x0212" not in answer] == []
    assert len((await server.translate("A man.", timeout_s=PATIENCE_S)).translations) == 1


async def test_a_client_learns_that_a_method_is_not_there(server: RunningServer) -> None:
    error = await refusal(server.channel.unary_unary("/dragoman.v1.TranslationService/Translat")(b""))

    assert error.code == grpc.StatusCode.UNIMPLEMENTED.name
    assert server.sample("dragoman_unseen_calls_total") == 0
