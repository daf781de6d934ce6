"""Kinds of input that are no message, or one that no library would write."""

from collections.abc import Callable, Mapping
from typing import Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError

from loadtests.bad_inputs.inputs import (
    CHEAP,
    Content,
    Draw,
    Expected,
    Method,
    invalid,
    possibly,
    request_fields,
)

_METHODS: Final = (Method.UNARY, Method.UNARY, Method.STREAM, Method.DOCUMENT)
_NO_MESSAGE: Final = invalid("request")
_BAD_UTF8: Final = (
    b"\xff", b"\xfe\xff", b"\x80", b"\xbf" * 9, b"\xc0\xaf", b"\xc0\x80", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf",
    b"\xc1\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\xc3\x28", b"\xfc\x84\x80\x80\x80\x80",
)  # fmt: skip
"""Bytes out of place, overlong forms, surrogates, values beyond U+10FFFF, sequences cut off."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_STRING_FIELDS: Final[Mapping[type[pb.TranslateRequest | pb.TranslateDocumentRequest], tuple[int, ...]]] = {
    pb.TranslateRequest: (1, 2, 3, 4, 7, 8),
    pb.TranslateDocumentRequest: (1, 2, 3, 4, 7),
}
_OPTIONS_FIELD: Final = 5
_PREFIX_FIELD, _SUPPRESSED_FIELD = 11, 18
_MOST_NESTED: Final = 20_000


def bad_utf8(draw: Draw) -> Content:
    """Return a string field, of the request or of its options, whose bytes are no UTF-8; lone surrogates among them."""
    generator, method = draw.generator, _method(draw)
    raw = (
        b"A man " * generator.choice((0, 1, 100)) + generator.choice(_BAD_UTF8) + b" reads." * generator.choice((0, 1))
    )
    if generator.random() < 0.2:
        raw = encoded(_OPTIONS_FIELD, encoded(generator.choice((_PREFIX_FIELD, _SUPPRESSED_FIELD)), raw))
    else:
        raw = encoded(generator.choice(_STRING_FIELDS[_message_type(method)]), raw)
    return _content(method, _valid(draw, method) + raw, _NO_MESSAGE)


def truncated(draw: Draw) -> Content:
    """Return a message that breaks off."""
    method = _method(draw)
    message = _valid(draw, method)
    return _judged(method, message[: draw.generator.randrange(len(message))])


def random_bytes(draw: Draw) -> Content:
    """Return bytes that mean nothing."""
    return _judged(_method(draw), draw.generator.randbytes(int(5000 ** draw.generator.random())))


def flipped(draw: Draw) -> Content:
    """Return a message some bits of which are wrong."""
    method = _method(draw)
    message = bytearray(_valid(draw, method))
    for _ in range(draw.generator.choice((1, 2, 8))):
        message[draw.generator.randrange(len(message))] ^= 1 << draw.generator.randrange(8)
    return _judged(method, bytes(message))


def wrong_types(draw: Draw) -> Content:
    """Return fields of the right number and another wire type; the end of a group that never began."""
    method, generator = _method(draw), draw.generator
    wire_type = generator.randrange(8)
    payload = {_VARINT: varint(generator.randrange(2**64)), _FIXED64: bytes(8), _FIXED32: bytes(4), _BYTES: b"\x01x"}
    raw = varint(generator.choice((1, 2, 5, 6, 7, 8)) << 3 | wire_type) + payload.get(wire_type, b"")
    return _judged(method, _valid(draw, method) + raw)


def huge_lengths(draw: Draw) -> Content:
    """Return a field that claims to be up to 2^64 bytes long, and a varint without an end."""
    method, generator = _method(draw), draw.generator
    length = generator.choice((2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1))
    claim = generator.choice((varint(length), b"\xff" * 10, b"\x80" * 300))
    return _content(method, _valid(draw, method) + varint(1 << 3 | _BYTES) + claim + b"short", _NO_MESSAGE)


def nested(draw: Draw) -> Content:
    """Return groups or messages within each other, deeper than any stack should follow."""
    method, generator = _method(draw), draw.generator
    depth = generator.choice((50, 99, 101, 1000, _MOST_NESTED))
    number = generator.choice((5, 90, 1007))
    if generator.random() < 0.5:
        ends = varint(number << 3 | _END_GROUP) * generator.choice((0, depth))
        return _judged(method, _valid(draw, method) + varint(number << 3 | _GROUP) * depth + ends)
    raw = b""
    for _ in range(min(depth, 1000)):
        raw = encoded(10 if number == _OPTIONS_FIELD else number, raw)
    return _judged(method, _valid(draw, method) + encoded(_OPTIONS_FIELD, raw))


def unknown_fields(draw: Draw) -> Content:
    """Return a good message with fields of a contract that nobody has written, many or long."""
    method, generator = _method(draw), draw.generator
    count, size = generator.choice(((1, 10), (2000, 1), (1, 200_000), (300, 300)))
    fields = [
        encoded(generator.choice((100, 1007, 18_999, 2**29 - 1)), generator.randbytes(size)) for _ in range(count)
    ]
    return _content(method, _valid(draw, method) + b"".join(fields), possibly())


def duplicates(draw: Draw) -> Content:
    """Return a good message whose fields come many times: of single ones the last counts, options are merged."""
    method, generator = _method(draw), draw.generator
    message = _valid(draw, method)
    if method is not Method.DOCUMENT:
        text_free = pb.TranslateRequest.FromString(message)
        text_free.ClearField("texts")
        return _content(method, text_free.SerializeToString() * generator.choice((2, 500)) + message, possibly())
    return _content(method, message * generator.choice((2, 50)), possibly())


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


def _method(draw: Draw) -> Method:
    return draw.generator.choice(_METHODS)


def _message_type(method: Method) -> type[pb.TranslateRequest | pb.TranslateDocumentRequest]:
    return pb.TranslateDocumentRequest if method is Method.DOCUMENT else pb.TranslateRequest


def _valid(draw: Draw, method: Method) -> bytes:
    """Return a message that there is nothing wrong with."""
    options = pb.DecodingOptions(**CHEAP)
    fields = request_fields(draw.limits)
    if method is Method.DOCUMENT:
        return pb.TranslateDocumentRequest(
            text="A man reads. He sleeps.", options=options, **fields
        ).SerializeToString()
    return pb.TranslateRequest(texts=["A man reads.", ""], options=options, **fields).SerializeToString()


def _judged(method: Method, message: bytes) -> Content:
    """Return bytes of which only a parser can say whether they are a message; if they are, it may ask for anything."""
    try:
        _message_type(method).FromString(message)
    except DecodeError:
        return _content(method, message, _NO_MESSAGE)
    return _content(method, message, possibly("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"))


def _content(method: Method, message: bytes, expected: Expected) -> Content:
    return Content(message=message, expected=expected, method=method, num_characters=len(message))


BROKEN_MESSAGES: Final[Mapping[str, Callable[[Draw], Content]]] = {
    "bad-utf8": bad_utf8,
    "truncated": truncated,
    "random-bytes": random_bytes,
    "flipped-bits": flipped,
    "wrong-types": wrong_types,
    "huge-lengths": huge_lengths,
    "nested-messages": nested,
    "unknown-fields": unknown_fields,
    "duplicate-fields": duplicates,
}
"""By the name of their kind."""
