import pytest
from hpack import Decoder
from hyperframe.frame import ContinuationFrame, DataFrame, GoAwayFrame, HeadersFrame
from hypothesis import given
from hypothesis import strategies as st

from loadtests.stress.chaos import http2


@given(
    st.lists(st.tuples(st.integers(32, 255), st.integers(0, 2**31 - 1), st.binary(max_size=300))), st.binary(max_size=8)
)
def test_frames_are_read_as_they_were_written_and_an_unfinished_one_is_kept(
    frames: list[tuple[int, int, bytes]], rest: bytes
) -> None:
    written = b"".join(http2.any_frame(kind, body, stream=stream) for kind, stream, body in frames)

    found, kept = http2.frames_of(written + rest)

    assert [(frame.type, frame.stream_id, getattr(frame, "body", b"")) for frame in found] == frames
    assert kept == rest


@given(st.binary(max_size=200))
def test_what_is_no_http2_is_no_error(noise: bytes) -> None:
    http2.frames_of(noise)


@given(st.integers(0, 200_000))
def test_a_header_block_is_cut_into_frames_that_a_peer_accepts(size: int) -> None:
    frames, rest = http2.frames_of(http2.headers_frames(bytes(size), stream=3))

    assert rest == b""
    assert [type(frame) for frame in frames] == [HeadersFrame] + [ContinuationFrame] * (len(frames) - 1)
    assert sum(frame.body_len for frame in frames) == size
    assert all(frame.body_len <= http2.MAX_FRAME_BYTES for frame in frames)
    assert ["END_HEADERS" in frame.flags for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_a_header_block_can_be_sent_again_on_the_same_connection() -> None:
    block, decoder = http2.header_block("/x/Y", timeout_s=1.5, extra=[("x-note", "a" * 1337)]), Decoder()

    first, second = ({str(name): str(value) for name, value in decoder.decode(block)} for _ in range(2))

    assert first == second
    assert (first["grpc-timeout"], first["x-note"]) == ("1500m", "a" * 1337)


def test_a_message_says_its_length_or_another() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"


def test_the_last_frame_of_data_ends_the_stream() -> None:
    frames, _ = http2.frames_of(http2.data_frames(bytes(40_000)))

    assert [type(frame) for frame in frames] == [DataFrame] * 3
    assert ["END_STREAM" in frame.flags for frame in frames] == [False, False, True]


def test_errors_have_names() -> None:
    (goaway,), _ = http2.frames_of(GoAwayFrame(error_code=0xB).serialize())

    assert isinstance(goaway, GoAwayFrame)
    assert (http2.error_name(goaway.error_code), http2.error_name(0x77)) == ("ENHANCE_YOUR_CALM", "0x77")


@pytest.mark.parametrize("kind", http2.GARBAGE)
def test_garbage_is_the_same_for_the_same_number_and_bounded(kind: str) -> None:
    first, second = (http2.garbage(kind, 7) for _ in range(2))

    assert first == second
    assert 0 < len(first) < 100_000
