import pytest
from dragoman.v1 import translation_pb2 as pb

from service.api.streams import readable_id

NAMED = pb.TranslateRequest(request_id="r1").SerializeToString()


@pytest.mark.parametrize(
    "rest",
    [b"", b"\x0a\x02\xff\xfe", b"\x2a\x01\xff", b"\x38\x01", b"\xfa\x3e\x01x", b"\x0a\x01a" * 100_000],
    ids=["nothing", "no UTF-8", "broken options", "a number in its place", "an unknown field", "a lot"],
)
def test_the_id_is_read_whatever_the_other_fields_hold(rest: bytes) -> None:
    assert readable_id(NAMED + rest) == readable_id(rest + NAMED) == "r1"


@pytest.mark.parametrize("raw_request", [b"", b"\x0a\x7fshort", b"\xff" * 20, NAMED[:-1], NAMED + b"\x3c" * 1000])
def test_of_bytes_without_an_end_there_is_no_id(raw_request: bytes) -> None:
    assert readable_id(raw_request) == ""


def test_an_id_that_is_no_utf8_can_be_sent_back() -> None:
    assert readable_id(b"\x3a\x02\xff\xfe") == "\ufffd\ufffd"
