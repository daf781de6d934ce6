import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes

from loadtests.stress.chaos import http2


def heard(sent: bytes) -> list[object]:
    """What a server makes of it."""
    server = H2Connection(H2Configuration(client_side=False))
    server.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = 2**24
    server.initiate_connection()
    return list(server.receive_data(sent))


def test_a_call_of_any_size_is_a_good_one_in_frames_that_a_peer_accepts() -> None:
    protocol = http2.Protocol()
    protocol.call("/x/Y", bytes(40_000), timeout_s=1.5, extra=[("x-note", "a" * 30_000)])

    events = heard(protocol.data_to_send())

    (request,) = [event for event in events if isinstance(event, RequestReceived)]
    headers = dict(request.headers)
    assert (headers[b"grpc-timeout"], headers[b"x-note"]) == (b"1500m", b"a" * 30_000)
    assert sum(len(event.data) for event in events if isinstance(event, DataReceived)) == 40_000
    assert isinstance(events[-1], StreamEnded)


def test_a_message_says_its_length_or_another() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"


@pytest.mark.parametrize("kind", http2.GARBAGE)
def test_garbage_is_the_same_for_the_same_number_and_bounded(kind: str) -> None:
    first, second = (http2.garbage(kind, 7) for _ in range(2))

    assert first == second
    assert 0 < len(first) < 100_000
