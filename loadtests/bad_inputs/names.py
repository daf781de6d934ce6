"""Kinds of input whose names are bad: languages, models, labels, ids, prefixes, pieces of the vocabulary."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.bad_inputs.inputs import (
    CHEAP,
    OK,
    Content,
    Draw,
    Method,
    invalid,
    possibly,
    refused,
    translate_content,
)
from loadtests.bad_inputs.texts import SHAPES

_MAX_LANGUAGE_CHARACTERS: Final = 35
_MAX_NAME_CHARACTERS: Final = 128
_MAX_PREFIX_CHARACTERS: Final = 1000
_LANGUAGES: Final = (
    "e", "e n", "-", "--", "-en", "xx-", "x-private", "i-klingon", "xx_DE", "zz-" + "a" * 33, "\uff45\uff4e",
    "\u0435n", "*", "\0", "xx\0", "../xx", "xx\nyy", "123", "\U0001f600", "qaa-Qaaa-QM-x-southern", "\u202exx",
    "x" * 35,
)  # fmt: skip
_MODELS: Final = (
    "../../etc/passwd", "..", ".", "/", "//", "/etc/passwd", "..\\..\\windows", "a/b/c", "a/../b", "a@b@c", "a/@", "@",
    "a/", "/1", "%2e%2e%2f", "\0", "a\0/1", "a\n/1", "\u202ea/1", "\uff0f", "\U0001f600/1", "~root/1", "$HOME/1",
    "`id`/1", "x" * 128, "-rf/1", "con/1", "a:b/1", "{}/1", "%s/%s", "../models/1", "./1", "a/.", "a/..", "*/*",
    "serving.toml", ".hidden/1",
)  # fmt: skip
_NO_NAME: Final = ("INVALID_ARGUMENT", "NOT_FOUND")


def languages(draw: Draw) -> Content:
    """Return a language tag that is none, is nobody's, or is longer than tags are."""
    field = draw.generator.choice(("source_language", "target_language"))
    tag = draw.generator.choice((*_LANGUAGES, "", "y" * (_MAX_LANGUAGE_CHARACTERS + 1), _shaped(draw, 60)))
    is_sized = 1 <= len(tag) <= _MAX_LANGUAGE_CHARACTERS
    expected = refused(*_NO_NAME) if is_sized else invalid(field)
    fields: dict[str, Any] = {field: tag}
    return translate_content(draw.limits, "A man.", expected=expected, method=_method(draw), **fields)


def models(draw: Draw) -> Content:
    """Return a name of a model that leads elsewhere, asked for by a translation or by itself."""
    name = _bad_model(draw)
    expected = refused(*_NO_NAME) if len(name) <= _MAX_NAME_CHARACTERS else invalid("model")
    if draw.generator.random() < 0.5:
        return _message(Method.GET_MODEL, pb.GetModelRequest(model=name), *_NO_NAME)
    return translate_content(draw.limits, "A man.", expected=expected, method=_method(draw), model=name)


def administration(draw: Draw) -> Content:
    """Return a change of models by a name or label that cannot be one; none of them may touch a file."""
    statuses = (*_NO_NAME, "UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION")
    name = _bad_model(draw)
    method = draw.generator.choice((Method.LOAD_MODEL, Method.UNLOAD_MODEL, Method.SET_MODEL_LABEL))
    request = {
        Method.LOAD_MODEL: pb.LoadModelRequest(model=name),
        Method.UNLOAD_MODEL: pb.UnloadModelRequest(model=name),
        Method.SET_MODEL_LABEL: pb.SetModelLabelRequest(
            model=name, label=draw.generator.choice(("", "a b", "../x", "\0", "x" * 65))
        ),
    }[method]
    return _message(method, request, *statuses)


def request_ids(draw: Draw) -> Content:
    """Return an id that cannot be sent back, or just can."""
    bad = (
        "\0",
        "a\r\nb: c",
        "\x7f",
        "\u00e9",
        "\U0001f600",
        "\u202e",
        "x" * (_MAX_NAME_CHARACTERS + 1),
        "a\tb",
        _shaped(draw, 200),
    )
    good = ("x" * _MAX_NAME_CHARACTERS, " ", "../..", "%s{}'\"\\;", "<script>")
    request_id = draw.generator.choice((*bad, *good))
    is_usable = len(request_id) <= _MAX_NAME_CHARACTERS and request_id.isascii() and request_id.isprintable()
    expected = OK if is_usable else invalid("request_id")
    return translate_content(
        draw.limits, "A man.", expected=expected, method=_method(draw), is_named=True, request_id=request_id
    )


def prefixes(draw: Draw) -> Content:
    """Return what a translation should begin with, of every shape of bad text, around its greatest size."""
    generator = draw.generator
    size = generator.choice((1, 5, 30, _MAX_PREFIX_CHARACTERS, _MAX_PREFIX_CHARACTERS + 1))
    prefix = _shaped(draw, size)
    texts = ("A man.", "\n", "Two.")
    options = pb.DecodingOptions(beam_size=1, repetition_guard=False, max_target_tokens=60)
    fields: dict[str, Any] = {}
    if generator.random() < 0.5:
        field, options.target_prefix = "options.target_prefix", prefix
    else:
        field, fields["target_prefixes"] = "target_prefixes", ["", prefix, prefix][: generator.choice((1, 3, 3, 3))]
    expected = possibly("INVALID_ARGUMENT", field=field)
    if len(prefix) > _MAX_PREFIX_CHARACTERS:
        expected = invalid(field)
    return translate_content(draw.limits, *texts, expected=expected, method=_method(draw), options=options, **fields)


def suppressed_pieces(draw: Draw) -> Content:
    """Return pieces to leave out that are special, bytes, or no pieces."""
    count = draw.generator.choice((1, 3, 64, 65))
    pieces = [_shaped(draw, draw.generator.choice((1, 2, 6))) for _ in range(count)]
    options = pb.DecodingOptions(**CHEAP, suppressed_tokens=pieces)
    expected = possibly("INVALID_ARGUMENT", field="options.suppressed_tokens")
    return translate_content(draw.limits, "A man.", expected=expected, method=_method(draw), options=options)


def _bad_model(draw: Draw) -> str:
    return str(draw.generator.choice((*_MODELS, "y" * (_MAX_NAME_CHARACTERS + 1), f"?{_shaped(draw, 100)}")))


def _shaped(draw: Draw, size: int) -> str:
    return SHAPES[draw.generator.choice(sorted(SHAPES))](draw.generator, size)


def _method(draw: Draw) -> Method:
    return draw.generator.choice((Method.UNARY, Method.STREAM))


def _message(method: Method, request: Message, *statuses: str) -> Content:
    return Content(
        message=request.SerializeToString(),
        expected=refused(*statuses),
        method=method,
        is_named=True,
        num_characters=request.ByteSize(),
    )


NAMES: Final[Mapping[str, Callable[[Draw], Content]]] = {
    "languages": languages,
    "models": models,
    "administration": administration,
    "request-ids": request_ids,
    "prefixes": prefixes,
    "suppressed-pieces": suppressed_pieces,
}
"""By the name of their kind."""
