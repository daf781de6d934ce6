"""Hostile requests by kind, and the right responses; limits are those of the contract and of `SERVER_SETTINGS`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from dragoman.option_ranges import OptionRange, option_ranges
from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile.messages import CHANGES, encoded
from loadtests.hostile.texts import CHEAP, SHAPES, Draw, repeated, shaped

LEFT: Final = "LEFT"  # status of a call that its client cancelled as planned, because the response would take too long
_MESSAGE_BYTES: Final = 4 * 1024 * 1024
SERVER_SETTINGS: Final = {"DRAGOMAN_GRPC__MAX_MESSAGE_BYTES": str(_MESSAGE_BYTES)}
_STEPS: Final = (-1, 0, 1)
_UNITS: Final = ("word ", "\U0001f600", "\n", "a", "\ufdfa", ". ")
_UNKNOWN_FIELD: Final = 1007
_ANY_MESSAGE: Final = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")
_SAMPLING: Final = option_ranges(pb.SamplingOptions)
_NUMBERS: Final[Sequence[OptionRange]] = [
    option
    for ranges in (option_ranges(pb.DecodingOptions), _SAMPLING)
    for option in ranges.values()
    if option.type in (int, float) and not option.is_list
]
_EVERYTHING: Final = {
    "beam_size": 2, "num_hypotheses": 2, "return_scores": True, "return_tokens": True, "return_alignment": True,
}  # fmt: skip


class Expected(NamedTuple):
    """The right responses to a request."""

    statuses: Sequence[str]  # of a request in a stream, those of its own response
    field: str = ""  # prefix of the path of the rejected field; empty: any


OK: Final = Expected(["OK"])


def invalid(field: str) -> Expected:
    """Expect INVALID_ARGUMENT for a field."""
    return Expected(["INVALID_ARGUMENT"], field)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileRequest:
    """A message to send, and the right response."""

    message: bytes
    method: Method  # TranslateStream: sent between two ordinary requests of the same call
    expected: Expected
    num_characters: int  # of the texts; bytes of other messages
    is_compressed: bool = False
    leaves: bool = False  # the client cancels after the first message of a document


def usual_fields(model: pb.ModelVersion) -> dict[str, Any]:
    """Return the fields of requests and documents other than the text."""
    pair = model.language_pairs[0]
    return {"source_language": pair.source_language, "target_language": pair.target_language, "options": CHEAP}


def _request(draw: Draw, *texts: str, expected: Expected = OK, **fields: Any) -> HostileRequest:
    """Return a request, unary or in a stream; `fields` replace the usual ones."""
    message = pb.TranslateRequest(texts=texts, **{**usual_fields(draw.model), **fields}).SerializeToString()
    method = draw.choice((Method.TRANSLATE, Method.TRANSLATE_STREAM))
    return HostileRequest(message=message, method=method, expected=expected, num_characters=sum(map(len, texts)))


def _document(draw: Draw, text: str, *, expected: Expected = OK, leaves: bool = False, **fields: Any) -> HostileRequest:
    message = pb.TranslateDocumentRequest(text=text, **{**usual_fields(draw.model), **fields}).SerializeToString()
    method = Method.TRANSLATE_DOCUMENT
    return HostileRequest(message=message, method=method, expected=expected, num_characters=len(text), leaves=leaves)


def _text(shape: str, draw: Draw) -> HostileRequest:
    """Return texts of a shape, of all lengths, for every method; some with all options of the response."""
    is_document, is_large, is_rich = (draw.random() < share for share in (0.2, 0.03, 0.1))
    size = draw.size(300)
    if is_large:
        size = draw.randint(1000, draw.model.limits.max_text_characters)
    elif is_rich:
        size = draw.size(40)  # attention limits the tokens
    texts = [shaped(draw, size, shape) for _ in range(1 if is_document or is_large or is_rich else draw.choice((1, 3)))]
    options = CHEAP
    if is_rich and not is_large:
        options = {**_EVERYTHING, "max_target_tokens": 16, "return_attention": pb.ATTENTION_DETAIL_AVERAGED}
    expected = OK
    if sum(map(len, texts)) > 2000:  # may exceed the tokens of a request
        expected = Expected(["OK", "INVALID_ARGUMENT"], "text" if is_document else "texts")
    return (_document if is_document else _request)(draw, *texts, expected=expected, options=options)


def _damaged(change: str, draw: Draw) -> HostileRequest:
    is_document = draw.random() < 0.25
    good = _document(draw, "A man reads.") if is_document else _request(draw, "A man reads.", " He sleeps.")
    message_type = pb.TranslateDocumentRequest if is_document else pb.TranslateRequest
    message = CHANGES[change](draw, message_type.FromString(good.message))
    try:
        message_type.FromString(message)
        expected = OK if change in ("unknown-fields", "duplicate-fields") else Expected(_ANY_MESSAGE)
    except DecodeError:
        expected = invalid("request")
    return replace(good, message=message, expected=expected, num_characters=len(message))


def option_limits(draw: Draw) -> HostileRequest:
    """A numeric option at a limit, beyond it, or far from it."""
    option = draw.choice(_NUMBERS)
    low, high = option.minimum, option.maximum
    if option.name == "max_target_tokens":
        high = draw.model.limits.max_target_tokens
    elif option.name == "min_target_tokens":
        high = CHEAP["max_target_tokens"] - 1
    values: Sequence[float] = (low - 1, low, low + 1, high - 1, high, high + 1, -1, -(2**31), 2**31 - 1)
    if option.type is float:
        beyond = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        values = (low, high, *beyond, math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308)
    value = draw.choice([value for value in values if option.type is float or -(2**31) <= value < 2**31])
    path, options = f"options.{option.name}", {**CHEAP, "beam_size": 2, option.name: value}
    if option.name == "num_hypotheses":
        options["beam_size"] = option_ranges(pb.DecodingOptions)["beam_size"].maximum
    if option.name in _SAMPLING:
        path = f"options.sampling.{option.name}"
        options = {"max_target_tokens": 3, "sampling": {"seed": 1, option.name: value}}
    expected = OK if option.contains(value) and value <= high else invalid(path)
    if expected == OK and option.name == "coverage_penalty":
        expected = Expected(["OK", "UNIMPLEMENTED"])  # a model without an attention graph
    return _request(draw, "A man reads.", expected=expected, options=options)


def text_sizes(draw: Draw) -> HostileRequest:
    """A text around the maximum size."""
    step = draw.choice(_STEPS)
    text = repeated(draw.choice(_UNITS), draw.model.limits.max_text_characters + step)
    expected = invalid("texts[1]") if step > 0 else Expected(["OK", "INVALID_ARGUMENT"], "texts")
    return _request(draw, "A man.", text, expected=expected)


def text_counts(draw: Draw) -> HostileRequest:
    """No text, or around the maximum number of texts."""
    most = draw.model.limits.max_texts
    count = draw.choice((0, *(most + step for step in _STEPS), 5000))
    texts = draw.choices(("", "a", "\n", "\ufdfa", "A man."), k=count)
    return _request(draw, *texts, expected=OK if 1 <= count <= most else invalid("texts"))


def document_sizes(draw: Draw) -> HostileRequest:
    """An empty document, or around the maximum size; cancelled after a few sentences."""
    most = draw.model.limits.max_document_characters
    size = draw.choice((0, *(most + step for step in _STEPS)))
    unit = draw.choice((*_UNITS[:4], shaped(draw, 4096)[:1024] + "a"))  # mostly at most four bytes per character
    text = repeated(unit, size)
    expected = Expected(["OK", LEFT]) if 1 <= size <= most else invalid("text")
    if len(text.encode()) > _MESSAGE_BYTES - 1024:
        expected = Expected(["RESOURCE_EXHAUSTED"])
    return _document(draw, text, expected=expected, leaves=True)


def _padded(sizes: Sequence[int], draw: Draw, *, is_compressed: bool = False) -> HostileRequest:
    """Return a message that is valid except for its size; most of it is an unknown field."""
    size = draw.choice(sizes)
    expected = Expected(["RESOURCE_EXHAUSTED"]) if size > _MESSAGE_BYTES else OK
    good = replace(_request(draw, "A man.", expected=expected), method=Method.TRANSLATE)
    padding = bytes(size - len(good.message))
    num_excess = len(encoded(_UNKNOWN_FIELD, padding)) - len(padding)  # the key and length of an unknown field
    message = good.message + encoded(_UNKNOWN_FIELD, padding[num_excess:])
    return replace(good, message=message, num_characters=size, is_compressed=is_compressed)


message_sizes = partial(_padded, [_MESSAGE_BYTES + step for step in (*_STEPS, 100_000)])
compression_bombs = partial(_padded, [_MESSAGE_BYTES * factor // 2 for factor in (1, 2, 4, 16)], is_compressed=True)


class Kind(NamedTuple):
    """A kind of hostile requests."""

    make: Callable[[Draw], HostileRequest]
    summary: str | None
    weight: float = 1.0  # relative frequency


KINDS: Final[Mapping[str, Kind]] = {
    **{name: Kind(partial(_text, name), shape.summary) for name, shape in SHAPES.items()},
    **{name: Kind(partial(_damaged, name), change.__doc__) for name, change in CHANGES.items()},
    "option-limits": Kind(option_limits, option_limits.__doc__, 6.0),
    "text-sizes": Kind(text_sizes, text_sizes.__doc__, 0.1),
    "text-counts": Kind(text_counts, text_counts.__doc__),
    "document-sizes": Kind(document_sizes, document_sizes.__doc__, 0.1),
    "message-sizes": Kind(message_sizes, "a message around the maximum size", 0.1),
    "compression-bombs": Kind(compression_bombs, "megabytes compressed with gzip", 0.1),
}


def make(kind: str, index: int, *, seed: int, model: pb.ModelVersion) -> HostileRequest:
    """Return a request of a kind, reproducible from seed, index and model."""
    return KINDS[kind].make(Draw(f"{seed}/{kind}/{index}", model=model))
