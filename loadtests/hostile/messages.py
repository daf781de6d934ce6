"""Damage to protobuf messages: invalid bytes, and valid bytes that no library writes."""

from collections.abc import Callable, Mapping
from typing import Final

from google.protobuf.message import Message
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from loadtests.hostile.texts import Draw

_BAD_UTF8: Final = st.from_regex(  # misplaced bytes, overlong forms, surrogates, values beyond U+10FFFF, truncation
    rb"[\x80-\xbf]{1,9}|[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}"
    rb"|(\xed[\xa0-\xbf][\x80-\xbf]){1,2}|\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xff][\x80-\xbf]{0,5}"
    rb"|[\xc2-\xdf]|\xe2\x82|\xf0\x9f\x98|\xc3\(",
    fullmatch=True,
)
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_OPTIONS: Final = pb.TranslateRequest.OPTIONS_FIELD_NUMBER


def encoded(number: int, value: bytes) -> bytes:
    """Return the wire format of a bytes field."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return the wire format of a nonnegative integer."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def bad_utf8(draw: Draw, good: Message) -> bytes:
    """A string field of the request or its options with invalid UTF-8, including lone surrogates."""
    is_option = draw.random() < 0.2
    fields = (pb.DecodingOptions if is_option else good).DESCRIPTOR.fields
    number = draw.choice([field.number for field in fields if field.type == field.TYPE_STRING])
    text = b"A man " * draw.choice((0, 1, 100)) + draw(_BAD_UTF8) + b" reads." * draw.choice((0, 1))
    raw = encoded(number, text)
    return good.SerializeToString() + (encoded(_OPTIONS, raw) if is_option else raw)


def wrong_types(draw: Draw, good: Message) -> bytes:
    """Fields with a known number and another wire type, or the end of a group without a beginning."""
    number, wire_type = draw.choice([field.number for field in good.DESCRIPTOR.fields]), draw.randrange(8)
    values = {_VARINT: varint(draw.getrandbits(64)), _FIXED64: bytes(8), _FIXED32: bytes(4), _BYTES: b"\x01x"}
    return good.SerializeToString() + varint(number << 3 | wire_type) + values.get(wire_type, b"")


def huge_lengths(draw: Draw, good: Message) -> bytes:
    """A field with a claimed length of up to 2^64 bytes, or an endless varint."""
    length = draw.choice((2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1))
    claim = draw.choice((varint(length), b"\xff" * 10, b"\x80" * 300))
    return good.SerializeToString() + varint(1 << 3 | _BYTES) + claim + b"short"


def nested_messages(draw: Draw, good: Message) -> bytes:
    """Deeply nested groups or messages."""
    depth, number = draw.choice((50, 99, 101, 1000, 20_000)), draw.choice((_OPTIONS, 90, 1007))
    if draw.random() < 0.5:
        ends = varint(number << 3 | _END_GROUP) * draw.choice((0, depth))
        return good.SerializeToString() + varint(number << 3 | _GROUP) * depth + ends
    raw, inner = b"", pb.DecodingOptions.SAMPLING_FIELD_NUMBER if number == _OPTIONS else number
    for _ in range(min(depth, 1000)):
        raw = encoded(inner, raw)
    return good.SerializeToString() + encoded(_OPTIONS, raw)


def unknown_fields(draw: Draw, good: Message) -> bytes:
    """A valid message with many or long unknown fields."""
    count, size = draw.choice(((1, 10), (2000, 1), (1, 200_000), (300, 300)))
    numbers = draw.choices((100, 1007, 18_999, 2**29 - 1), k=count)
    return good.SerializeToString() + b"".join(encoded(number, draw.randbytes(size)) for number in numbers)


def duplicate_fields(draw: Draw, good: Message) -> bytes:
    """A valid message with repeated singular fields: the last one counts, options are merged."""
    usual = pb.TranslateRequest(source_language="xx", options={"beam_size": 16})  # documents have the same numbers
    return usual.SerializeToString() * draw.choice((2, 500)) + good.SerializeToString()


CHANGES: Final[Mapping[str, Callable[[Draw, Message], bytes]]] = {
    change.__name__.replace("_", "-"): change
    for change in (
        bad_utf8, wrong_types, huge_lengths, nested_messages, unknown_fields, duplicate_fields,
    )
}  # fmt: skip
