import socket

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes

from loadtests.stress.chaos import http2


def test_a_call_of_any_size_is_a_good_one_in_frames_that_a_peer_accepts() -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = 2**24
    server.initiate_connection()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = http2.RawConnection(f"127.0.0.1:{listening.getsockname()[1]}")
        connection.call("/x/Y", bytes(40_000), timeout_s=15, extra=[("x-note", "a" * 30_000)])
        connection.close(with_reset=False)
        accepted, _ = listening.accept()
        with accepted:
            events = server.receive_data(b"".join(iter(lambda: accepted.recv(65_536), b"")))

    (request,) = [event for event in events if isinstance(event, RequestReceived)]
    headers = dict(request.headers)
    assert (headers[b"grpc-timeout"], headers[b"x-note"]) == (b"15S", b"a" * 30_000)
    assert sum(len(event.data) for event in events if isinstance(event, DataReceived)) == 40_000
    assert isinstance(events[-1], StreamEnded)


def test_a_message_says_its_length_or_another() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"


def test_garbage_is_the_same_for_the_same_number_and_bounded() -> None:
    assert http2.garbage(7) == http2.garbage(7) != http2.garbage(8)
    assert all(0 < len(content) < 100_000 for content in http2.garbage(7).values())
