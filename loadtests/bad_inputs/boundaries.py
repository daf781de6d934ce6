"""Kinds of input at a limit, one below it and one beyond: sizes, counts, options."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.bad_inputs.broken_messages import encoded
from loadtests.bad_inputs.inputs import (
    CHEAP,
    LEFT,
    OK,
    Content,
    Draw,
    Expected,
    Method,
    document_content,
    invalid,
    possibly,
    refused,
    translate_content,
)

_UNKNOWN_FIELD: Final = 1007
_STEPS: Final = (-1, 0, 1)
_UNITS: Final = ("word ", "\U0001f600", "\n", "a", "\ufdfa", ". ")
_MAX_PREFIX_CHARACTERS: Final = 1000
_MAX_SUPPRESSED: Final = 64
_METADATA_ENTRY_BYTES: Final = 32
"""What HTTP/2 counts for each entry besides its bytes."""

_INT_CAPS: Final = {
    "beam_size": (1, 16),
    "num_hypotheses": (1, 16),
    "no_repeat_ngram_size": (0, 16),
    "min_target_tokens": (0, 2),
    "max_target_tokens": (1, None),
}
"""Least and most; None: as the model says."""

_DOUBLE_CAPS: Final = {"length_penalty": (0.0, 5.0), "repetition_penalty": (1.0, 10.0), "coverage_penalty": (0.0, 5.0)}
_ODD_DOUBLES: Final = (
    math.nan, math.inf, -math.inf, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e-9,
    struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf0\x7f")[0],
)  # fmt: skip
"""The last one is a signalling NaN."""

_ODD_INTS: Final = (-1, -(2**31), 2**31 - 1, 1000)
_ENUM_FIELDS: Final = ("long_sentences", "format", "return_attention")


def text_sizes(draw: Draw) -> Content:
    """Return a text around the most characters of one."""
    size = draw.limits.max_text_characters + _step(draw)
    text = _filled(draw, size)
    expected = possibly("INVALID_ARGUMENT", field="texts")
    if size > draw.limits.max_text_characters:
        expected = invalid("texts[1]")
    return translate_content(draw.limits, "A man.", text, expected=expected)


def request_sizes(draw: Draw) -> Content:
    """Return texts around the most characters of a request."""
    size, step = draw.limits.max_request_characters, _step(draw)
    each = draw.limits.max_text_characters
    texts = [_filled(draw, each) for _ in range(size // each - 1)]
    texts += [_filled(draw, each - 1), _filled(draw, 1 + size % each + step)]
    expected = invalid("texts") if step > 0 else possibly("INVALID_ARGUMENT", field="texts")
    return translate_content(draw.limits, *texts, expected=expected)


def text_counts(draw: Draw) -> Content:
    """Return no text, or around the most texts of a request."""
    count = draw.generator.choice((0, *(draw.limits.max_texts + step for step in _STEPS), 5000))
    expected = OK if 1 <= count <= draw.limits.max_texts else invalid("texts")
    texts = draw.generator.choices(("", "a", "\n", "\ufdfa", "A man."), k=count)
    method = draw.generator.choice((Method.UNARY, Method.STREAM))
    return translate_content(draw.limits, *texts, expected=expected, method=method)


def document_sizes(draw: Draw) -> Content:
    """Return an empty document, or around the most characters of one."""
    size = draw.generator.choice((0, *(draw.limits.max_document_characters + step for step in _STEPS)))
    expected = possibly(LEFT) if 1 <= size <= draw.limits.max_document_characters else invalid("text")
    unit = draw.generator.choice(_UNITS[:4])  # four bytes a character at most, or gRPC refuses the message first
    return document_content(draw.limits, _of(unit, size), expected=expected, leaves_after=2)


def message_sizes(draw: Draw) -> Content:
    """Return a message around the most bytes of one, most of them in a field that nobody knows."""
    step = draw.generator.choice((*_STEPS, 100_000))
    method = Method.DOCUMENT if step > 0 and draw.generator.random() < 0.5 else Method.UNARY
    return _padded(draw, draw.limits.max_message_bytes + step, method=method)


def compression_bombs(draw: Draw) -> Content:
    """Return a message of a few kilobytes that gzip makes as large as may be, or many times larger."""
    most = draw.limits.max_message_bytes
    content = _padded(draw, draw.generator.choice((most // 2, most - 1, most + 1, 2 * most, 8 * most)))
    return replace(content, is_compressed=True)


def metadata(draw: Draw) -> Content:
    """Return a good request whose metadata are many, long, binary, or not what their keys promise."""
    generator = draw.generator
    room = draw.limits.max_metadata_bytes
    entries: Sequence[tuple[str, str | bytes]] = generator.choice(
        (
            [("x-request-id", generator.choice(("", " ", "x" * 128, "x" * 129, "~!\"'\\", "../../x", "%00%0a")))],
            [("x-request-id", "a"), ("x-request-id", "b")],
            [
                (
                    "traceparent",
                    generator.choice(("", "00-", "ff-" + "f" * 60, f"00-{'0' * 32}-{'0' * 16}-01", "x" * 5000)),
                )
            ],
            [("tracestate", ",=," * 300), ("baggage", "a=b;c," * 200)],
            [("authorization", generator.choice(("", "Bearer", "Bearer " + "x" * 3000, "Basic Og==", "dgm_x_y")))],
            [(f"x-{index}", "") for index in range(200)],
            [("x-bin", generator.randbytes(generator.choice((0, 1, 1000))))],
            [("x-long", "y" * (room + generator.choice((-2000, 1, 5000))))],
            [("grpc-retry-pushback-ms", "-1"), ("grpc-previous-rpc-attempts", "4294967296")],
            [("user-agent", "x" * 2000), ("content-language", "xx"), ("host", "..")],
        )
    )
    size = sum(len(key) + len(value) + _METADATA_ENTRY_BYTES for key, value in entries)
    expected = refused("RESOURCE_EXHAUSTED") if size > room else OK
    small = translate_content(draw.limits, "A man.", expected=expected)
    return Content(
        message=small.message, expected=expected, metadata=tuple(entries), num_characters=size, is_named=True
    )


def integers(draw: Draw) -> Content:
    """Return one whole number among the options at a cap, one below it or beyond, or far from it."""
    generator = draw.generator
    name = generator.choice(sorted(_INT_CAPS))
    low, high = _INT_CAPS[name]
    most = draw.limits.max_target_tokens if high is None else high
    value = generator.choice((low - 1, low, low + 1, most - 1, most, most + 1, *_ODD_INTS))
    options: dict[str, Any] = {**CHEAP, "beam_size": 16 if name == "num_hypotheses" else 1, name: value}
    expected = OK if low <= value <= most else invalid(f"options.{name}")
    return _with_options(draw, expected, **options)


def doubles(draw: Draw) -> Content:
    """Return one number with a fraction at a cap, a hair beyond it, or none at all: NaN, infinity, denormals."""
    generator = draw.generator
    name = generator.choice(sorted(_DOUBLE_CAPS))
    low, high = _DOUBLE_CAPS[name]
    near = (low, high, math.nextafter(low, -math.inf), math.nextafter(high, math.inf), (low + high) / 2)
    value = generator.choice((*near, *_ODD_DOUBLES))
    unsupported = ("UNIMPLEMENTED",) if name == "coverage_penalty" else ()  # a model without an attention graph
    expected = possibly(*unsupported) if low <= value <= high else invalid(f"options.{name}")
    return _with_options(draw, expected, **{**CHEAP, "beam_size": 2, name: value})


def sampling(draw: Draw) -> Content:
    """Return numbers of sampling at their caps and beyond."""
    generator = draw.generator
    choices: Mapping[str, tuple[Sequence[float], float, float]] = {
        "temperature": ((0.01, 10.0, 0.0, math.nextafter(0.01, 0), math.nextafter(10, 11), *_ODD_DOUBLES), 0.01, 10.0),
        "top_p": ((5e-324, 1.0, 0.0, math.nextafter(1, 2), *_ODD_DOUBLES), 5e-324, 1.0),
        "top_k": ((0, 1, 1000, 1001, *_ODD_INTS), 1, 1000),
        "seed": ((-1, 0, 2**63 - 1, -(2**63)), 0, 2**63 - 1),
    }
    name = generator.choice(sorted(choices))
    values, low, high = choices[name]
    value = generator.choice(values)
    expected = OK if low <= value <= high else invalid(f"options.sampling.{name}")
    chosen: dict[str, Any] = {name: value}
    return _with_options(draw, expected, sampling=pb.SamplingOptions(**chosen), max_target_tokens=3)


def enums(draw: Draw) -> Content:
    """Return numbers that no enum lists."""
    number = draw.generator.choice((99, -1, 2**31 - 1, -(2**31)))
    if draw.generator.random() < 0.3:
        return translate_content(draw.limits, "A man.", expected=invalid("priority"), priority=number)
    name = draw.generator.choice(_ENUM_FIELDS)
    return _with_options(draw, invalid(f"options.{name}"), **{**CHEAP, name: number})


def contradictions(draw: Draw) -> Content:
    """Return options each of which is in range, but not beside the other."""
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"beam_size": 2, "num_hypotheses": 3}, "options.num_hypotheses"),
        ({"beam_size": 2, "sampling": pb.SamplingOptions(top_k=2)}, "options.beam_size"),
        ({"min_target_tokens": 5, "max_target_tokens": 5}, "options.min_target_tokens"),
        ({"target_prefix": "Ein Mann liest einen Brief.", "max_target_tokens": 2}, "options.target_prefix"),
        ({"suppressed_tokens": ["a"] * (_MAX_SUPPRESSED + 1)}, "options.suppressed_tokens"),
        ({"target_prefix": "a" * (_MAX_PREFIX_CHARACTERS + 1)}, "options.target_prefix"),
    )
    options, field = draw.generator.choice(cases)
    return _with_options(draw, invalid(field), **options)


def _with_options(draw: Draw, expected: Expected, **options: Any) -> Content:
    text, chosen = "A man reads.", pb.DecodingOptions(**options)
    if draw.generator.random() < 0.25:
        return document_content(draw.limits, text, expected=expected, options=chosen)
    method = draw.generator.choice((Method.UNARY, Method.STREAM))
    return translate_content(draw.limits, text, expected=expected, method=method, options=chosen)


def _padded(draw: Draw, size: int, *, method: Method = Method.UNARY) -> Content:
    """Return a good message of so many bytes, or one that is only too large."""
    small = translate_content(draw.limits, "A man.", expected=OK).message
    padding = size - len(small)
    padding -= len(encoded(_UNKNOWN_FIELD, bytes(padding))) - padding  # the field's own head
    message = small + encoded(_UNKNOWN_FIELD, bytes(padding))
    expected = OK if len(message) <= draw.limits.max_message_bytes else refused("RESOURCE_EXHAUSTED")
    return Content(message=message, expected=expected, method=method, is_named=True, num_characters=len(message))


def _step(draw: Draw) -> int:
    return draw.generator.choice(_STEPS)


def _filled(draw: Draw, size: int) -> str:
    return _of(draw.generator.choice(_UNITS), size)


def _of(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


BOUNDARIES: Final[Mapping[str, Callable[[Draw], Content]]] = {
    "text-sizes": text_sizes,
    "request-sizes": request_sizes,
    "text-counts": text_counts,
    "document-sizes": document_sizes,
    "message-sizes": message_sizes,
    "compression-bombs": compression_bombs,
    "metadata": metadata,
    "integers": integers,
    "doubles": doubles,
    "sampling": sampling,
    "enums": enums,
    "contradictions": contradictions,
}
"""By the name of their kind."""
