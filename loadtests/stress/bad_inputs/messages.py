"""Kinds of input that are no message of Protocol Buffers, or one that no library would write."""

from typing import Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from loadtests.stress.bad_inputs.inputs import CHEAP, BadInput, Draw, Expected, invalid, possibly
from loadtests.wire import Method

_METHODS: Final = (Method.TRANSLATE, Method.TRANSLATE, Method.TRANSLATE_STREAM, Method.TRANSLATE_DOCUMENT)
_NO_MESSAGE: Final = invalid("request")
_BAD_UTF8: Final = (
    b"\xff", b"\xfe\xff", b"\x80", b"\xbf" * 9, b"\xc0\xaf", b"\xc0\x80", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf",
    b"\xc1\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\xc3\x28", b"\xfc\x84\x80\x80\x80\x80",
)  # fmt: skip
"""Bytes out of place, overlong forms, surrogates, values beyond U+10FFFF, sequences cut off."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_STRING_FIELDS: Final = {Method.TRANSLATE_DOCUMENT: (1, 2, 3, 4, 7)}
_STRING_FIELDS_OF_REQUEST: Final = (1, 2, 3, 4, 7, 8)
_OPTIONS_FIELD: Final = 5
_PREFIX_FIELD, _SUPPRESSED_FIELD = 11, 18
_MOST_NESTED: Final = 20_000
_LENGTHS: Final = (2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


def bad_utf8(draw: Draw) -> BadInput:
    """A string field, of the request or of its options, whose bytes are no UTF-8; lone surrogates among them."""
    method = draw.choice(_METHODS)
    raw = b"A man " * draw.choice((0, 1, 100)) + draw.choice(_BAD_UTF8) + b" reads." * draw.choice((0, 1))
    if draw.chance(0.2):
        raw = encoded(_OPTIONS_FIELD, encoded(draw.choice((_PREFIX_FIELD, _SUPPRESSED_FIELD)), raw))
    else:
        raw = encoded(draw.choice(_STRING_FIELDS.get(method, _STRING_FIELDS_OF_REQUEST)), raw)
    return _input(method, _valid(draw, method) + raw, _NO_MESSAGE)


def truncated(draw: Draw) -> BadInput:
    """A message that breaks off."""
    method = draw.choice(_METHODS)
    message = _valid(draw, method)
    return _judged(method, message[: draw.integer(0, len(message) - 1)])


def random_bytes(draw: Draw) -> BadInput:
    """Bytes that mean nothing."""
    size = int(5000 ** (draw.integer(0, 1000) / 1000))
    return _judged(draw.choice(_METHODS), draw.generator().randbytes(size))


def flipped_bits(draw: Draw) -> BadInput:
    """A message in which some bits are wrong."""
    method = draw.choice(_METHODS)
    message = bytearray(_valid(draw, method))
    for bit in draw(st.lists(st.integers(0, 8 * len(message) - 1), min_size=1, max_size=8)):
        message[bit // 8] ^= 1 << bit % 8
    return _judged(method, bytes(message))


def wrong_types(draw: Draw) -> BadInput:
    """Fields of the right number and another wire type; the end of a group that never began."""
    method, wire_type = draw.choice(_METHODS), draw.integer(0, 7)
    payload = {_VARINT: varint(draw.integer(0, 2**64 - 1)), _FIXED64: bytes(8), _FIXED32: bytes(4), _BYTES: b"\x01x"}
    raw = varint(draw.choice((1, 2, 5, 6, 7, 8)) << 3 | wire_type) + payload.get(wire_type, b"")
    return _judged(method, _valid(draw, method) + raw)


def huge_lengths(draw: Draw) -> BadInput:
    """A field that claims to be up to 2^64 bytes long, and a varint without an end."""
    method = draw.choice(_METHODS)
    claim = draw.choice((varint(draw.choice(_LENGTHS)), b"\xff" * 10, b"\x80" * 300))
    return _input(method, _valid(draw, method) + varint(1 << 3 | _BYTES) + claim + b"short", _NO_MESSAGE)


def nested_messages(draw: Draw) -> BadInput:
    """Groups or messages within each other, deeper than any stack should follow."""
    method = draw.choice(_METHODS)
    depth, number = draw.choice((50, 99, 101, 1000, _MOST_NESTED)), draw.choice((5, 90, 1007))
    if draw.chance(0.5):
        ends = varint(number << 3 | _END_GROUP) * draw.choice((0, depth))
        return _judged(method, _valid(draw, method) + varint(number << 3 | _GROUP) * depth + ends)
    raw = b""
    for _ in range(min(depth, 1000)):
        raw = encoded(10 if number == _OPTIONS_FIELD else number, raw)
    return _judged(method, _valid(draw, method) + encoded(_OPTIONS_FIELD, raw))


def unknown_fields(draw: Draw) -> BadInput:
    """A good message with fields that are in no contract, many or long."""
    method, generator = draw.choice(_METHODS), draw.generator()
    count, size = draw.choice(((1, 10), (2000, 1), (1, 200_000), (300, 300)))
    numbers = generator.choices((100, 1007, 18_999, 2**29 - 1), k=count)
    fields = b"".join(encoded(number, generator.randbytes(size)) for number in numbers)
    return _input(method, _valid(draw, method) + fields, possibly())


def duplicate_fields(draw: Draw) -> BadInput:
    """A good message whose fields come many times: of single ones the last counts, options are merged."""
    method = draw.choice(_METHODS)
    message = _valid(draw, method)
    if method is Method.TRANSLATE_DOCUMENT:
        return _input(method, message * draw.choice((2, 50)), possibly())
    without_texts = pb.TranslateRequest.FromString(message)
    without_texts.ClearField("texts")
    return _input(method, without_texts.SerializeToString() * draw.choice((2, 500)) + message, possibly())


def encoded(number: int, value: bytes) -> bytes:
    """Return a field of bytes as it is on the wire."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return an integer, 0 or more, in groups of seven bits."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _valid(draw: Draw, method: Method) -> bytes:
    """Return a message that there is nothing wrong with."""
    options, languages = pb.DecodingOptions(**CHEAP), draw.limits.languages
    if method is Method.TRANSLATE_DOCUMENT:
        text = "A man reads. He sleeps."
        return pb.TranslateDocumentRequest(text=text, options=options, **languages).SerializeToString()
    return pb.TranslateRequest(texts=["A man reads.", ""], options=options, **languages).SerializeToString()


def _judged(method: Method, message: bytes) -> BadInput:
    """Return bytes of which only a parser can say whether they are a message; if they are, it may ask for anything."""
    message_type = pb.TranslateDocumentRequest if method is Method.TRANSLATE_DOCUMENT else pb.TranslateRequest
    try:
        message_type.FromString(message)
    except DecodeError:
        return _input(method, message, _NO_MESSAGE)
    return _input(method, message, possibly("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"))


def _input(method: Method, message: bytes, expected: Expected) -> BadInput:
    return BadInput(message=message, expected=expected, method=method, num_characters=len(message))


MESSAGES: Final = (
    bad_utf8, truncated, random_bytes, flipped_bits, wrong_types, huge_lengths, nested_messages, unknown_fields,
    duplicate_fields,
)  # fmt: skip
