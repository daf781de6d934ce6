import struct

from hypothesis import given
from hypothesis import strategies as st

from loadtests.chaos import http2

FRAMES = st.lists(
    st.builds(
        http2.Frame,
        kind=st.integers(0, 255),
        flags=st.integers(0, 255),
        stream=st.integers(0, 2**31 - 1),
        payload=st.binary(max_size=300),
    ),
    max_size=5,
)


def written(frame: http2.Frame) -> bytes:
    return http2.frame(frame.kind, frame.payload, flags=frame.flags, stream=frame.stream)


@given(FRAMES, st.binary(max_size=8))
def test_frames_are_read_as_they_were_written_and_an_unfinished_one_is_kept(
    frames: list[http2.Frame], rest: bytes
) -> None:
    assert http2.frames_of(b"".join(map(written, frames)) + rest) == (frames, rest)


@given(st.integers(0, 200_000))
def test_a_header_block_is_cut_into_frames_that_a_peer_takes(size: int) -> None:
    block = bytes(size)

    frames, rest = http2.frames_of(http2.headers_frames(block, stream=3))

    assert rest == b""
    assert b"".join(frame.payload for frame in frames) == block
    assert [frame.kind for frame in frames] == [http2.HEADERS] + [http2.CONTINUATION] * (len(frames) - 1)
    assert all(len(frame.payload) <= http2.MAX_FRAME_BYTES for frame in frames)
    assert [bool(frame.flags & http2.END_HEADERS) for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_headers_are_literals_with_lengths_of_a_seven_bit_prefix() -> None:
    block = http2.header_block([("te", "trailers"), ("x", "a" * 1337)])

    assert (
        block == b"\x00\x02te\x08trailers" + b"\x00\x01x" + b"\x7f\xba\x09" + b"a" * 1337
    )  # 1337 - 127 = 58 + 9 * 128


def test_a_message_says_its_length_or_another() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"


def test_the_last_frame_of_data_ends_the_stream() -> None:
    frames, _ = http2.frames_of(http2.data_frames(bytes(40_000), stream=1))

    assert [frame.ends_stream for frame in frames] == [False, False, True]


def test_errors_have_names() -> None:
    goaway = http2.Frame(kind=http2.GOAWAY, flags=0, stream=0, payload=struct.pack(">II", 1, 0xB))
    reset = http2.Frame(kind=http2.RST_STREAM, flags=0, stream=1, payload=struct.pack(">I", 0x77))

    assert (goaway.error, reset.error) == ("ENHANCE_YOUR_CALM", "0x77")
