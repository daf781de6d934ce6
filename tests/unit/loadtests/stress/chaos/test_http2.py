import socket

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from loadtests.stress.chaos import http2


def test_a_call_of_any_size_is_a_good_one_in_frames_that_a_peer_accepts() -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = http2.RawConnection(f"127.0.0.1:{listening.getsockname()[1]}")
        connection.call("/x/Y", bytes(40_000), timeout_s=15, extra=[("x-note", "a" * 30_000)])
        connection.close(with_reset=False)
        with listening.accept()[0] as accepted, accepted.makefile("rb") as sent:
            events = server.receive_data(sent.read())

    (request,) = [event for event in events if isinstance(event, RequestReceived)]
    assert dict(request.headers).items() >= {b"grpc-timeout": b"15S", b"x-note": b"a" * 30_000}.items()
    assert sum(len(event.data) for event in events if isinstance(event, DataReceived)) == 40_000
    assert isinstance(events[-1], StreamEnded)


def test_a_message_says_its_length_or_another() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"


def test_garbage_is_the_same_for_the_same_number_and_bounded() -> None:
    assert http2.garbage(7) == http2.garbage(7) != http2.garbage(8)
    assert all(0 < len(content) < 100_000 for content in http2.garbage(7).values())
