"""Kinds of input whose fields are bad: sizes and options at each limit and beyond it, names that cannot be ones."""

import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message
from hypothesis import strategies as st

from loadtests.stress.bad_inputs.inputs import (
    CHEAP,
    LEFT,
    OK,
    BadInput,
    Draw,
    Expected,
    document_input,
    invalid,
    possibly,
    rejected,
    repeated,
    translate_input,
)
from loadtests.stress.bad_inputs.messages import encoded
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.wire import Method

_UNKNOWN_FIELD: Final = 1007
_STEPS: Final = (-1, 0, 1)
_UNITS: Final = ("word ", "\U0001f600", "\n", "a", "\ufdfa", ". ")
_MAX_PREFIX_CHARACTERS: Final = 1000
_MAX_SUPPRESSED: Final = 64
_MAX_LANGUAGE_CHARACTERS: Final = 35
_MAX_NAME_CHARACTERS: Final = 128
_METADATA_ENTRY_BYTES: Final = 32
"""What HTTP/2 counts for each entry besides its bytes."""

_ODD_INTS: Final = (-1, -(2**63), -(2**31), 2**31 - 1, 1000)
_SIGNALLING_NAN: Final[float] = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf0\x7f")[0]
_DOUBLES: Final = st.floats() | st.sampled_from(
    (math.nan, math.inf, -math.inf, -0.0, 5e-324, -5e-324, 2.3e-308, 1.7976931348623157e308, 1e-9, _SIGNALLING_NAN)
)
_OPTION_LIMITS: Final[Mapping[str, tuple[float, float | None]]] = {
    "beam_size": (1, 16), "num_hypotheses": (1, 16), "no_repeat_ngram_size": (0, 16), "min_target_tokens": (0, 2),
    "max_target_tokens": (1, None), "length_penalty": (0.0, 5.0), "repetition_penalty": (1.0, 10.0),
    "coverage_penalty": (0.0, 5.0),
}  # fmt: skip
"""Least and most; None: as the model says."""

_SAMPLING_LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.01, 10.0), "top_p": (5e-324, 1.0), "top_k": (1, 1000), "seed": (0, 2**63 - 1),
}  # fmt: skip
_CONTRADICTIONS: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"beam_size": 2, "num_hypotheses": 3}, "num_hypotheses"),
    ({"beam_size": 2, "sampling": pb.SamplingOptions(top_k=2)}, "beam_size"),
    ({"min_target_tokens": 5, "max_target_tokens": 5}, "min_target_tokens"),
    ({"target_prefix": "Ein Mann liest einen Brief.", "max_target_tokens": 2}, "target_prefix"),
    ({"suppressed_tokens": ["a"] * (_MAX_SUPPRESSED + 1)}, "suppressed_tokens"),
    ({"target_prefix": "a" * (_MAX_PREFIX_CHARACTERS + 1)}, "target_prefix"),
)
_LANGUAGES: Final = (
    "e", "e n", "-", "--", "-en", "xx-", "x-private", "i-klingon", "xx_DE", "zz-" + "a" * 33, "\uff45\uff4e",
    "\u0435n", "*", "\0", "xx\0", "../xx", "xx\nyy", "123", "\U0001f600", "qaa-Qaaa-QM-x-southern", "\u202exx",
    "x" * 35, "", "y" * (_MAX_LANGUAGE_CHARACTERS + 1),
)  # fmt: skip
_MODELS: Final = (
    "../../etc/passwd", "..", ".", "/", "//", "/etc/passwd", "..\\..\\windows", "a/b/c", "a/../b", "a@b@c", "a/@", "@",
    "a/", "/1", "%2e%2e%2f", "\0", "a\0/1", "a\n/1", "\u202ea/1", "\uff0f", "\U0001f600/1", "~root/1", "$HOME/1",
    "`id`/1", "x" * 128, "-rf/1", "con/1", "a:b/1", "{}/1", "%s/%s", "../models/1", "./1", "a/.", "a/..", "*/*",
    "serving.toml", ".hidden/1", "y" * (_MAX_NAME_CHARACTERS + 1),
)  # fmt: skip
_REQUEST_IDS: Final = (
    "\0", "a\r\nb: c", "\x7f", "\u00e9", "\U0001f600", "\u202e", "x" * (_MAX_NAME_CHARACTERS + 1), "a\tb",
    "x" * _MAX_NAME_CHARACTERS, " ", "../..", "%s{}'\"\\;", "<script>",
)  # fmt: skip
_LABELS: Final = ("", "a b", "../x", "\0", "x" * 65)
_TRACE_PARENTS: Final = ("", "00-", "ff-" + "f" * 60, f"00-{'0' * 32}-{'0' * 16}-01", "x" * 5000)
_TOKENS: Final = ("", "Bearer", "Bearer " + "x" * 3000, "Basic Og==", "dgm_x_y")
_NO_NAME: Final = ("INVALID_ARGUMENT", "NOT_FOUND")


def text_sizes(draw: Draw) -> BadInput:
    """A text around the most characters of one."""
    size = draw.limits.max_text_characters + draw.choice(_STEPS)
    is_over = size > draw.limits.max_text_characters
    expected = invalid("texts[1]") if is_over else possibly("INVALID_ARGUMENT", field="texts")
    return translate_input(draw.limits, "A man.", repeated(draw.choice(_UNITS), size), expected=expected)


def request_sizes(draw: Draw) -> BadInput:
    """Texts around the most characters of a request."""
    size, each, step = draw.limits.max_request_characters, draw.limits.max_text_characters, draw.choice(_STEPS)
    sizes = [*[each] * (size // each - 1), each - 1, 1 + size % each + step]
    expected = invalid("texts") if step > 0 else possibly("INVALID_ARGUMENT", field="texts")
    return translate_input(draw.limits, *(repeated(draw.choice(_UNITS), one) for one in sizes), expected=expected)


def text_counts(draw: Draw) -> BadInput:
    """No text, or around the most texts of a request."""
    count = draw.choice((0, *(draw.limits.max_texts + step for step in _STEPS), 5000))
    expected = OK if 1 <= count <= draw.limits.max_texts else invalid("texts")
    texts = draw.generator().choices(("", "a", "\n", "\ufdfa", "A man."), k=count)
    return draw.request(*texts, expected=expected)


def document_sizes(draw: Draw) -> BadInput:
    """An empty document, or around the most characters of one."""
    size = draw.choice((0, *(draw.limits.max_document_characters + step for step in _STEPS)))
    expected = possibly(LEFT) if 1 <= size <= draw.limits.max_document_characters else invalid("text")
    unit = draw.choice(_UNITS[:4])  # four bytes a character at most, or gRPC rejects the message first
    return document_input(draw.limits, repeated(unit, size), expected=expected, leaves_after=2)


def message_sizes(draw: Draw) -> BadInput:
    """A message around the most bytes of one, most of them in an unknown field."""
    step = draw.choice((*_STEPS, 100_000))
    method = Method.TRANSLATE_DOCUMENT if step > 0 and draw.chance(0.5) else Method.TRANSLATE
    return _padded(draw, draw.limits.max_message_bytes + step, method=method)


def compression_bombs(draw: Draw) -> BadInput:
    """A message of a few kilobytes with gzip, and of the largest size or many times more without."""
    most = draw.limits.max_message_bytes
    content = _padded(draw, draw.choice((most // 2, most - 1, most + 1, 2 * most, 8 * most)))
    return replace(content, is_compressed=True)


def metadata(draw: Draw) -> BadInput:
    """A good request whose metadata are many, long, binary, or not what their keys promise."""
    room = draw.limits.max_metadata_bytes
    request_id = draw.choice(("", " ", "x" * 128, "x" * 129, "~!\"'\\", "../../x", "%00%0a"))
    binary = draw.generator().randbytes(draw.choice((0, 1, 1000)))
    cases: tuple[tuple[tuple[str, str | bytes], ...], ...] = (
        (("x-request-id", request_id),),
        (("x-request-id", "a"), ("x-request-id", "b")),
        (("traceparent", draw.choice(_TRACE_PARENTS)),),
        (("tracestate", ",=," * 300), ("baggage", "a=b;c," * 200)),
        (("authorization", draw.choice(_TOKENS)),),
        tuple((f"x-{index}", "") for index in range(200)),
        (("x-bin", binary),),
        (("x-long", "y" * (room + draw.choice((-2000, 1, 5000)))),),
        (("grpc-retry-pushback-ms", "-1"), ("grpc-previous-rpc-attempts", "4294967296")),
        (("user-agent", "x" * 2000), ("content-language", "xx"), ("host", "..")),
    )
    entries = draw.choice(cases)
    size = sum(len(key) + len(value) + _METADATA_ENTRY_BYTES for key, value in entries)
    expected = rejected("RESOURCE_EXHAUSTED") if size > room else OK
    content = translate_input(draw.limits, "A man.", expected=expected)
    return replace(content, metadata=entries, num_characters=size, has_request_id=True)


def integers(draw: Draw) -> BadInput:
    """One whole number among the options at a limit, one below it or beyond, or far from it."""
    name = draw.choice([name for name, (low, _) in _OPTION_LIMITS.items() if isinstance(low, int)])
    low, high = _OPTION_LIMITS[name]
    value, expected = _number(draw, f"options.{name}", low, draw.limits.max_target_tokens if high is None else high)
    return _with_options(draw, expected, **{**CHEAP, "beam_size": 16 if name == "num_hypotheses" else 1, name: value})


def doubles(draw: Draw) -> BadInput:
    """One number with a fraction at a limit, a hair beyond it, or none at all: NaN, infinity, denormals."""
    name = draw.choice([name for name, (low, _) in _OPTION_LIMITS.items() if isinstance(low, float)])
    low, high = _OPTION_LIMITS[name]
    value, expected = _number(draw, f"options.{name}", low, high or 0.0)
    if expected == OK and name == "coverage_penalty":
        expected = possibly("UNIMPLEMENTED")  # a model without an attention graph
    return _with_options(draw, expected, **{**CHEAP, "beam_size": 2, name: value})


def sampling(draw: Draw) -> BadInput:
    """Numbers of sampling at their limits and beyond."""
    name = draw.choice(sorted(_SAMPLING_LIMITS))
    value, expected = _number(draw, f"options.sampling.{name}", *_SAMPLING_LIMITS[name])
    chosen: dict[str, Any] = {name: value}
    return _with_options(draw, expected, sampling=pb.SamplingOptions(**chosen), max_target_tokens=3)


def _number(draw: Draw, field: str, low: float, high: float) -> tuple[float, Expected]:
    """Draw a number about its limits, whole if these are, and what must become of it."""
    if isinstance(low, float):
        beyond = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        value = draw(st.sampled_from((low, high, *beyond, (low + high) / 2, 0.0)) | _DOUBLES)
    else:
        end = 2**63 if high >= 2**31 else 2**31
        near = (low - 1, low, low + 1, high - 1, high, high + 1, *_ODD_INTS)
        value = draw.choice([one for one in near if -end <= one < end])
    return value, OK if low <= value <= high else invalid(field)


def enums(draw: Draw) -> BadInput:
    """Numbers that no enum lists."""
    number = draw.choice((99, -1, 2**31 - 1, -(2**31)))
    if draw.chance(0.3):
        return translate_input(draw.limits, "A man.", expected=invalid("priority"), priority=number)
    name = draw.choice(("long_sentences", "format", "return_attention"))
    return _with_options(draw, invalid(f"options.{name}"), **{**CHEAP, name: number})


def contradictions(draw: Draw) -> BadInput:
    """Options each of which is in range, but not together with the other."""
    options, name = draw.choice(_CONTRADICTIONS)
    return _with_options(draw, invalid(f"options.{name}"), **options)


def languages(draw: Draw) -> BadInput:
    """A language tag that is none, that the server does not have, or that is longer than tags are."""
    field, tag = draw.choice(("source_language", "target_language")), _name(draw, _LANGUAGES, 60)
    expected = rejected(*_NO_NAME) if 1 <= len(tag) <= _MAX_LANGUAGE_CHARACTERS else invalid(field)
    fields: dict[str, Any] = {field: tag}
    return draw.request("A man.", expected=expected, **fields)


def models(draw: Draw) -> BadInput:
    """A name of a model that leads elsewhere, in a translation or in GetModel."""
    name = _model(draw)
    if draw.chance(0.5):
        return _message(Method.GET_MODEL, pb.GetModelRequest(model=name), *_NO_NAME)
    expected = rejected(*_NO_NAME) if len(name) <= _MAX_NAME_CHARACTERS else invalid("model")
    return draw.request("A man.", expected=expected, model=name)


def administration(draw: Draw) -> BadInput:
    """A change of models by a name or label that cannot be one; none of them may touch a file."""
    name, method = _model(draw), draw.choice((Method.LOAD_MODEL, Method.UNLOAD_MODEL, Method.SET_MODEL_LABEL))
    request: Message = {
        Method.LOAD_MODEL: pb.LoadModelRequest(model=name),
        Method.UNLOAD_MODEL: pb.UnloadModelRequest(model=name),
        Method.SET_MODEL_LABEL: pb.SetModelLabelRequest(model=name, label=draw.choice(_LABELS)),
    }[method]
    return _message(method, request, *_NO_NAME, "UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION")


def request_ids(draw: Draw) -> BadInput:
    """A request id that cannot be sent back, or just can."""
    name = _name(draw, _REQUEST_IDS, 200)
    expected = (
        OK if len(name) <= _MAX_NAME_CHARACTERS and name.isascii() and name.isprintable() else invalid("request_id")
    )
    return draw.request("A man.", expected=expected, has_request_id=True, request_id=name)


def prefixes(draw: Draw) -> BadInput:
    """A target prefix of every shape of bad text, around its greatest size."""
    prefix = _shaped(draw, draw.choice((1, 5, 30, _MAX_PREFIX_CHARACTERS, _MAX_PREFIX_CHARACTERS + 1)))
    options = pb.DecodingOptions(beam_size=1, repetition_guard=False, max_target_tokens=60)
    fields: dict[str, Any] = {}
    if draw.chance(0.5):
        field, options.target_prefix = "options.target_prefix", prefix
    else:
        field, fields["target_prefixes"] = "target_prefixes", ["", prefix, prefix][: draw.choice((1, 3, 3, 3))]
    is_over = len(prefix) > _MAX_PREFIX_CHARACTERS
    expected = invalid(field) if is_over else possibly("INVALID_ARGUMENT", field=field)
    return draw.request("A man.", "\n", "Two.", expected=expected, options=options, **fields)


def suppressed_pieces(draw: Draw) -> BadInput:
    """Suppressed tokens that are special, bytes, or no pieces of the vocabulary."""
    count = draw.choice((1, 3, _MAX_SUPPRESSED, _MAX_SUPPRESSED + 1))
    known = [_shaped(draw, draw.choice((1, 2, 6))) for _ in range(min(count, 8))]
    options = pb.DecodingOptions(**CHEAP, suppressed_tokens=draw.generator().choices(known, k=count))
    expected = possibly("INVALID_ARGUMENT", field="options.suppressed_tokens")
    return draw.request("A man.", expected=expected, options=options)


def _with_options(draw: Draw, expected: Expected, **options: Any) -> BadInput:
    text, chosen = "A man reads.", pb.DecodingOptions(**options)
    if draw.chance(0.25):
        return document_input(draw.limits, text, expected=expected, options=chosen)
    return draw.request(text, expected=expected, options=chosen)


def _padded(draw: Draw, size: int, *, method: Method = Method.TRANSLATE) -> BadInput:
    """Return a good message of so many bytes, or one that is only too large."""
    small = translate_input(draw.limits, "A man.", expected=OK).message
    padding = size - len(small)
    padding -= len(encoded(_UNKNOWN_FIELD, bytes(padding))) - padding  # the field's own head
    message = small + encoded(_UNKNOWN_FIELD, bytes(padding))
    expected = OK if len(message) <= draw.limits.max_message_bytes else rejected("RESOURCE_EXHAUSTED")
    return BadInput(message=message, expected=expected, method=method, has_request_id=True, num_characters=len(message))


def _shaped(draw: Draw, size: int) -> str:
    return SHAPES[draw.choice(sorted(SHAPES))].text(draw, size)


def _name(draw: Draw, names: tuple[str, ...], size: int) -> str:
    """Draw one of the names, or a text of any shape."""
    return draw.choice(names) if draw.chance(0.8) else _shaped(draw, size)


def _model(draw: Draw) -> str:
    """Draw a name that is not that of a model."""
    return draw.choice(_MODELS) if draw.chance(0.8) else f"?{_shaped(draw, 100)}"


def _message(method: Method, request: Message, *statuses: str) -> BadInput:
    message = request.SerializeToString()
    expected = rejected(*statuses)
    return BadInput(message=message, expected=expected, method=method, has_request_id=True, num_characters=len(message))


FIELDS: Final = (
    text_sizes, request_sizes, text_counts, document_sizes, message_sizes, compression_bombs, metadata, integers,
    doubles, sampling, enums, contradictions, languages, models, administration, request_ids, prefixes,
    suppressed_pieces,
)  # fmt: skip
