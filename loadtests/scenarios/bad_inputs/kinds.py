"""The kinds of bad inputs, their numbers and their order: pure functions of a seed."""

import math
import random
import struct
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from dragoman.option_ranges import option_ranges
from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile.inputs import (
    CHEAP,
    LEFT,
    NAMES,
    NUM_ROWS,
    OK,
    SHAPES,
    BadInput,
    Draw,
    Expected,
    input_of,
    invalid,
    repeated,
    row,
    shaped,
)
from loadtests.hostile.messages import CHANGES, encoded

_MAX_REQUEST_CHARACTERS: Final = 100_000
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_MAX_METADATA_BYTES: Final = 16 * 1024  # a default of the server, like the two above
_MAX_PREFIX_CHARACTERS: Final = 1000
_MAX_SUPPRESSED: Final = 64
_ANY_MESSAGE: Final = Expected(["OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"])
_SIZES: Final = [_MAX_MESSAGE_BYTES + step for step in (-1, 0, 1, 100_000)]
_UNPACKED_SIZES: Final = [_MAX_MESSAGE_BYTES // 2, *_SIZES[:3], 2 * _MAX_MESSAGE_BYTES, 8 * _MAX_MESSAGE_BYTES]
_STEPS: Final = (-1, 0, 1)
_UNITS: Final = ("word ", "\U0001f600", "\n", "a", "\ufdfa", ". ")
_REQUEST: Final = pb.TranslateRequest.DESCRIPTOR.fields_by_name
_OPTIONS: Final = pb.DecodingOptions.DESCRIPTOR.fields_by_name
_SAMPLING: Final = pb.SamplingOptions.DESCRIPTOR.fields_by_name
_ENUMS: Final = [name for name, field in (*_REQUEST.items(), *_OPTIONS.items()) if field.enum_type]
_INTEGERS: Final = [name for name, field in _OPTIONS.items() if field.cpp_type == field.CPPTYPE_INT32]
_DOUBLES: Final = [name for name, field in _OPTIONS.items() if field.cpp_type == field.CPPTYPE_DOUBLE]
_EVERYTHING: Final = {
    "beam_size": 2, "num_hypotheses": 2, "return_scores": True, "return_tokens": True, "return_alignment": True,
}  # fmt: skip
_RANGES: Final = {**option_ranges(pb.SamplingOptions), **option_ranges(pb.DecodingOptions)}

_SIGNALLING_NAN: Final[float] = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf0\x7f")[0]
_ODD_DOUBLES: Final = st.floats() | st.sampled_from((
    math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, -5e-324, 2.3e-308, 1.7976931348623157e308, 1e-9, _SIGNALLING_NAN,
))  # fmt: skip
_CONTRADICTIONS: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("num_hypotheses", {"beam_size": 2, "num_hypotheses": 3}),
    ("beam_size", {"beam_size": 2, "sampling": {"top_k": 2}}),
    ("min_target_tokens", {"min_target_tokens": 5, "max_target_tokens": 5}),
    ("target_prefix", {"target_prefix": "Ein Mann liest einen Brief.", "max_target_tokens": 2}),
    ("target_prefix", {"target_prefix": "a" * (_MAX_PREFIX_CHARACTERS + 1)}),
    ("suppressed_tokens", {"suppressed_tokens": ["a"] * (_MAX_SUPPRESSED + 1)}),
)
_UNKNOWN_NAME: Final = Expected(["INVALID_ARGUMENT", "NOT_FOUND"])


def unicode(draw: Draw) -> BadInput:
    """Characters of eight rows of the code space; all inputs together cover it."""
    rows = [row(draw, (8 * draw.index + offset) % NUM_ROWS) for offset in range(8)]  # empty for surrogates
    texts = [text if draw.random() < 0.5 else f"A man {text} reads." for text in rows if text]
    return draw.request(*texts or ["A man."], expected=OK)


def _text(shape: str, draw: Draw) -> BadInput:
    """Return texts of a shape, of all lengths, for every method; some with all options of the response."""
    is_document, is_large = draw.random() < 0.2, draw.random() < 0.03
    is_rich = not is_large and draw.random() < 0.1  # short, because attention limits the tokens
    size = draw.randint(1000, draw.model.limits.max_text_characters) if is_large else draw.size(40 if is_rich else 300)
    num_texts = 1 if is_document or is_large or is_rich else draw.choice((1, 1, 2, 5))
    texts = [shaped(draw, max(1, size // num_texts), shape) for _ in range(num_texts)]
    attention = draw.choice((pb.ATTENTION_DETAIL_UNSPECIFIED, pb.ATTENTION_DETAIL_AVERAGED))
    everything = {
        "split_sentences": is_document or draw.random() < 0.7,
        "max_target_tokens": draw.choice((4, 16)),
        "return_attention": attention,
        **_EVERYTHING,
    }
    expected = OK
    if sum(map(len, texts)) > 2000:  # may exceed the tokens of a request
        expected = Expected(["OK", "INVALID_ARGUMENT"], "text" if is_document else "texts")
    send = draw.document if is_document else draw.request
    return send(*texts, expected=expected, options=everything if is_rich else CHEAP)


def megabytes(draw: Draw) -> BadInput:
    """A document of the maximum size, cancelled after a few sentences."""
    text = shaped(draw, 4096, sorted(SHAPES)[draw.index % len(SHAPES)])
    size = draw.model.limits.max_document_characters // draw.choice((1, 2))
    return draw.document(repeated(text, size), expected=Expected(["OK", LEFT]), leaves=True)


def html_format(draw: Draw) -> BadInput:
    """Invalid HTML with the HTML format, which must be parsed as browsers do."""
    text = shaped(draw, draw.choice((20, 400, 8000)), "html-bombs", "entity-bombs")
    options = {"format": pb.TEXT_FORMAT_HTML, "beam_size": 1, "max_target_tokens": 3}
    return draw.request_or_document(text, expected=OK, options=options)


def _message(change: str, draw: Draw) -> BadInput:
    good = draw.request_or_document("A man reads.", " He sleeps.", expected=OK)
    message_type = pb.TranslateDocumentRequest if good.method is Method.TRANSLATE_DOCUMENT else pb.TranslateRequest
    message = CHANGES[change](draw, message_type.FromString(good.message))
    try:
        message_type.FromString(message)
        expected = OK if change in ("unknown-fields", "duplicate-fields") else _ANY_MESSAGE
    except DecodeError:
        expected = invalid("request")
    return replace(good, message=message, expected=expected, num_characters=len(message))


def text_sizes(draw: Draw) -> BadInput:
    """A text around the maximum size."""
    step = draw.choice(_STEPS)
    text = repeated(draw.choice(_UNITS), draw.model.limits.max_text_characters + step)
    expected = invalid("texts[1]") if step > 0 else Expected(["OK", "INVALID_ARGUMENT"], "texts")
    return draw.request("A man.", text, expected=expected)


def request_sizes(draw: Draw) -> BadInput:
    """Texts around the maximum size of a request."""
    size, each, step = _MAX_REQUEST_CHARACTERS, draw.model.limits.max_text_characters, draw.choice(_STEPS)
    sizes = [*[each] * (size // each - 1), each - 1, 1 + size % each + step]
    expected = invalid("texts") if step > 0 else Expected(["OK", "INVALID_ARGUMENT"], "texts")
    return draw.request(*(repeated(draw.choice(_UNITS), one) for one in sizes), expected=expected)


def text_counts(draw: Draw) -> BadInput:
    """No text, or around the maximum number of texts."""
    most = draw.model.limits.max_texts
    count = draw.choice((0, *(most + step for step in _STEPS), 5000))
    texts = draw.choices(("", "a", "\n", "\ufdfa", "A man."), k=count)
    return draw.request(*texts, expected=OK if 1 <= count <= most else invalid("texts"))


def document_sizes(draw: Draw) -> BadInput:
    """An empty document, or around the maximum size."""
    most = draw.model.limits.max_document_characters
    size = draw.choice((0, *(most + step for step in _STEPS)))
    unit = draw.choice(_UNITS[:4])  # at most four bytes per character, below the message limit of gRPC
    expected = Expected(["OK", LEFT]) if 1 <= size <= most else invalid("text")
    return draw.document(repeated(unit, size), expected=expected, leaves=True)


def _padded(sizes: Sequence[int], draw: Draw, *, is_compressed: bool = False) -> BadInput:
    """Return a message that is valid except for its size; most of it is an unknown field."""
    size = draw.choice(sizes)
    expected = Expected(["RESOURCE_EXHAUSTED"]) if size > _MAX_MESSAGE_BYTES else OK
    if draw.random() < 0.5:
        good = draw.document("A man.", expected=expected)
    else:
        good = draw.request("A man.", expected=expected, method=Method.TRANSLATE)
    padding = bytes(size - len(good.message))
    num_excess = len(encoded(1007, padding)) - len(padding)  # the key and length of an unknown field
    message = good.message + encoded(1007, padding[num_excess:])
    return replace(good, message=message, num_characters=size, is_compressed=is_compressed)


def metadata(draw: Draw) -> BadInput:
    """A valid request with many, long, binary or invalid metadata."""
    request_id = draw.choice(("", " ", "x" * 128, "x" * 129, "~!\"'\\", "../../x", "%00%0a"))
    trace_parent = draw.choice(("", "00-", "ff-" + "f" * 60, f"00-{'0' * 32}-{'0' * 16}-01", "x" * 5000))
    token = draw.choice(("", "Bearer", "Bearer " + "x" * 3000, "Basic Og==", "dgm_x_y"))
    cases: Sequence[Sequence[tuple[str, str | bytes]]] = (
        [("x-request-id", request_id)],
        [("x-request-id", "a"), ("x-request-id", "b")],
        [("traceparent", trace_parent)],
        [("tracestate", ",=," * 300), ("baggage", "a=b;c," * 200)],
        [("authorization", token)],
        [(f"x-{index}", "") for index in range(200)],
        [("x-bin", draw.randbytes(draw.choice((0, 1, 1000))))],
        [("x-long", "y" * (_MAX_METADATA_BYTES + draw.choice((-2000, 1, 5000))))],
        [("grpc-retry-pushback-ms", "-1"), ("grpc-previous-rpc-attempts", "4294967296")],
        [("user-agent", "x" * 2000), ("content-language", "xx"), ("host", "..")],
    )
    entries = draw.choice(cases)
    size = sum(len(key) + len(value) + 32 for key, value in entries)  # 32: overhead per entry in HTTP/2
    expected = Expected(["RESOURCE_EXHAUSTED"]) if size > _MAX_METADATA_BYTES else OK
    good = draw.request("A man.", expected=expected, method=Method.TRANSLATE)
    return replace(good, metadata=entries, num_characters=size)


def _number(names: Sequence[str], draw: Draw) -> BadInput:
    """Return a numeric option at a limit, beyond it, or far from it."""
    name = draw.choice(names)
    low, high = _RANGES[name].minimum, _RANGES[name].maximum
    if name == "max_target_tokens":
        high = draw.model.limits.max_target_tokens
    elif name == "min_target_tokens":
        high = CHEAP["max_target_tokens"] - 1
    field, value = _SAMPLING.get(name) or _OPTIONS[name], 0.0
    if field.cpp_type == field.CPPTYPE_DOUBLE:
        beyond = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        value = draw.choice((low, high, (low + high) / 2, *beyond, draw(_ODD_DOUBLES), draw(_ODD_DOUBLES)))
    else:
        end = 2**31 if field.cpp_type == field.CPPTYPE_INT32 else 2**63
        near = (low - 1, low, low + 1, high - 1, high, high + 1, -1, -(2**63), -(2**31), 2**31 - 1, 1000)
        value = draw.choice([one for one in near if -end <= one < end])
    path, options = f"options.{name}", {**CHEAP, "beam_size": 16 if name == "num_hypotheses" else 2, name: value}
    if name in _SAMPLING:
        path, options = f"options.sampling.{name}", {"max_target_tokens": 3, "sampling": {"seed": 1, name: value}}
    expected = OK if _RANGES[name].contains(value) and value <= high else invalid(path)
    if expected == OK and name == "coverage_penalty":
        expected = Expected(["OK", "UNIMPLEMENTED"])  # a model without an attention graph
    return draw.request_or_document("A man reads.", expected=expected, options=options)


def enums(draw: Draw) -> BadInput:
    """Unknown enum values."""
    name, number = draw.choice(_ENUMS), draw.choice((99, -1, 2**31 - 1, -(2**31)))
    fields: dict[str, Any] = {name: number} if name in _REQUEST else {"options": {**CHEAP, name: number}}
    expected = invalid(name if name in _REQUEST else f"options.{name}")
    return draw.request_or_document("A man reads.", expected=expected, **fields)


def contradictions(draw: Draw) -> BadInput:
    """Options that are in range, but contradict each other."""
    name, options = draw.choice(_CONTRADICTIONS)
    return draw.request_or_document("A man reads.", expected=invalid(f"options.{name}"), options=options)


def _name(draw: Draw, of: str, most: int) -> str:
    """Draw a bad name, one around the maximum length, or a text of any shape."""
    return draw.choice((*NAMES[of], "x" * most, "y" * (most + 1))) if draw.random() < 0.8 else shaped(draw, 2 * most)


def languages(draw: Draw) -> BadInput:
    """A language tag that is invalid, unknown or too long."""
    name, tag = draw.choice(("source_language", "target_language")), _name(draw, "language", 35)
    if name == "source_language":
        tag = tag or "-"  # an empty tag requests detection
    fields: dict[str, Any] = {name: tag}
    return draw.request("A man.", expected=_UNKNOWN_NAME if 1 <= len(tag) <= 35 else invalid(name), **fields)


def models(draw: Draw) -> BadInput:
    """A misleading model name, in a translation or in GetModel."""
    name = _name(draw, "model", 128)
    if draw.random() < 0.5:
        return input_of(pb.GetModelRequest(model=name), _UNKNOWN_NAME)
    return draw.request("A man.", expected=_UNKNOWN_NAME if len(name) <= 128 else invalid("model"), model=name)


def administration(draw: Draw) -> BadInput:
    """A model operation with an invalid name or label, which must not touch a file."""
    name, label = _name(draw, "model", 128), draw.choice(("", "a b", "../x", "\0", "x" * 65))
    labelled = pb.SetModelLabelRequest(model=name, label=label)
    request = draw.choice((pb.LoadModelRequest(model=name), pb.UnloadModelRequest(model=name), labelled))
    refused = ("UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION")
    return input_of(request, Expected([*_UNKNOWN_NAME.statuses, *refused]))


def request_ids(draw: Draw) -> BadInput:
    """A request id that may be invalid in metadata."""
    name = _name(draw, "request_id", 128)
    is_good = len(name) <= 128 and name.isascii() and name.isprintable()
    return draw.request("A man.", expected=OK if is_good else invalid("request_id"), request_id=name)


def prefixes(draw: Draw) -> BadInput:
    """A target prefix of any shape, around the maximum size."""
    prefix = shaped(draw, draw.choice((1, 5, 30, _MAX_PREFIX_CHARACTERS, _MAX_PREFIX_CHARACTERS + 1)))
    path, options, of_texts = "options.target_prefix", {**CHEAP, "max_target_tokens": 60}, []
    if draw.random() < 0.5:
        options["target_prefix"] = prefix
    else:
        path, of_texts = "target_prefixes", ["", prefix, prefix][: draw.choice((1, 3, 3, 3))]
    is_over = len(prefix) > _MAX_PREFIX_CHARACTERS
    expected = invalid(path) if is_over else Expected(["OK", "INVALID_ARGUMENT"], path)
    return draw.request("A man.", "\n", "Two.", expected=expected, options=options, target_prefixes=of_texts)


def suppressed_pieces(draw: Draw) -> BadInput:
    """Suppressed tokens that are special, bytes, or not in the vocabulary."""
    count = draw.choice((1, 3, _MAX_SUPPRESSED, _MAX_SUPPRESSED + 1))
    known = [shaped(draw, draw.choice((1, 2, 6))) for _ in range(min(count, 8))]
    options = {**CHEAP, "suppressed_tokens": draw.choices(known, k=count)}
    expected = Expected(["OK", "INVALID_ARGUMENT"], "options.suppressed_tokens")
    return draw.request("A man.", expected=expected, options=options)


class Kind(NamedTuple):
    """A kind of bad input."""

    make: Callable[[Draw], BadInput]
    summary: str | None


KINDS: Final[Mapping[str, Kind]] = {
    **{name: Kind(partial(_text, name), shape.summary) for name, shape in SHAPES.items()},
    **{name: Kind(partial(_message, name), change.__doc__) for name, change in CHANGES.items()},
    "integers": Kind(partial(_number, _INTEGERS), "an integer option at a limit, or far from it"),
    "doubles": Kind(partial(_number, _DOUBLES), "a floating-point option at a limit, beyond it, or NaN"),
    "sampling": Kind(partial(_number, list(_SAMPLING)), "sampling options at their limits and beyond"),
    "message-sizes": Kind(partial(_padded, _SIZES), "a message around the maximum size"),
    "compression-bombs": Kind(partial(_padded, _UNPACKED_SIZES, is_compressed=True), "megabytes compressed with gzip"),
    **{
        kind.__name__.replace("_", "-"): Kind(kind, kind.__doc__)
        for kind in (
            unicode, html_format, megabytes, text_sizes, request_sizes, text_counts, document_sizes, metadata, enums,
            contradictions, languages, models, administration, request_ids, prefixes, suppressed_pieces,
        )
    },
}  # fmt: skip
_LARGE: Final = ("megabytes", "text-sizes", "document-sizes", "message-sizes", "compression-bombs")
_WEIGHTS: Final = {  # relative frequency; 1 for other kinds
    "unicode": 1.8,
    "html-format": 0.5,
    **dict.fromkeys(_LARGE, 0.1),
    "request-sizes": 0.02,
}

Plan = Sequence[tuple[str, int]]  # kind and index of each input


def plan(count: int, *, kinds: Sequence[str], seed: int) -> Plan:
    """Return the inputs of all kinds, mixed; raises ArgumentTypeError for fewer inputs than kinds."""
    if count < len(kinds):
        raise ArgumentTypeError(f"--count {count}: expected at least {len(kinds)}, one per kind")
    generator = random.Random(seed)
    weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
    counts = Counter([*kinds, *generator.choices(kinds, weights, k=count - len(kinds))])
    planned = [(kind, index) for kind in kinds for index in range(counts[kind])]
    generator.shuffle(planned)
    return planned


def make(kind: str, index: int, *, seed: int, model: pb.ModelVersion) -> BadInput:
    """Return an input, reproducible from seed and model."""
    return KINDS[kind].make(Draw(f"{seed}/{kind}/{index}", model=model, index=index))
