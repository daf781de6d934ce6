"""Requests that the server must refuse, each with the status that it must give. Pure, given a generator."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.wire import Method

_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_TEXT: Final = "The weather is nice today."
_TOO_MANY_TEXTS: Final = 129
_TOO_MANY_CHARACTERS: Final = 10_001
_TOO_MANY_BYTES: Final = 4 * 1024 * 1024 + 1
_NO_MESSAGE: Final = b"\xff\xff\xff\xff"
_NO_METHOD: Final = "/dragoman.v1.TranslationService/Divine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One request that is no good."""

    name: str
    method: Method
    raw: bytes
    status: str
    path: str
    """Where it is sent."""

    is_counted: bool = True
    """False: gRPC refuses it itself, before any code of the server's sees it."""

    weight: int = 4
    """How often it is sent, next to others."""


def _bad(name: str, status: str = "INVALID_ARGUMENT", **fields: Any) -> Refusal:
    return _of(name, status, Method.TRANSLATE, pb.TranslateRequest(**{"texts": [_TEXT], **_LANGUAGES, **fields}))


def _bad_document(name: str, status: str = "INVALID_ARGUMENT", **fields: Any) -> Refusal:
    message = pb.TranslateDocumentRequest(**{"text": _TEXT, **_LANGUAGES, **fields})
    return _of(name, status, Method.TRANSLATE_DOCUMENT, message)


def _of(name: str, status: str, method: Method, message: Message) -> Refusal:
    return Refusal(name=name, method=method, raw=message.SerializeToString(), status=status, path=method.path)


_UNARY: Final = (
    _bad("beam of nothing", options=pb.DecodingOptions(beam_size=0)),
    _bad("beam too wide", options=pb.DecodingOptions(beam_size=17)),
    _bad("more hypotheses than beams", options=pb.DecodingOptions(beam_size=2, num_hypotheses=3)),
    _bad("beam and sampling", options=pb.DecodingOptions(beam_size=2, sampling=pb.SamplingOptions())),
    _bad("no temperature", options=pb.DecodingOptions(sampling=pb.SamplingOptions(temperature=0.0))),
    _bad("not a number", options=pb.DecodingOptions(length_penalty=float("nan"))),
    _bad("no texts", texts=[]),
    _bad("too many texts", texts=[_TEXT] * _TOO_MANY_TEXTS),
    _bad("text too long", texts=["x" * _TOO_MANY_CHARACTERS]),
    _bad("too many sentences", texts=["No! " * 2400]),
    _bad("no language", target_language=""),
    _bad("markup", "UNIMPLEMENTED", options=pb.DecodingOptions(format=pb.TEXT_FORMAT_HTML)),
    _bad("unknown pair", "NOT_FOUND", target_language="tlh"),
    _bad("unknown model", "NOT_FOUND", model="nobody"),
    _bad("unknown label", "NOT_FOUND", model="nobody@stable"),
)
"""Each may be sent over a stream, too."""

_DOCUMENTS: Final = (
    _bad_document("empty document", text=""),
    _bad_document("unknown model of a document", "NOT_FOUND", model="nobody"),
    _bad_document("document as one sentence", options=pb.DecodingOptions(split_sentences=False)),
)

_OF_THE_WIRE: Final = (
    Refusal(
        name="no message",
        method=Method.TRANSLATE,
        raw=_NO_MESSAGE,
        status="INVALID_ARGUMENT",
        path=Method.TRANSLATE.path,
    ),
    Refusal(
        name="no method",
        method=Method.TRANSLATE,
        raw=b"",
        status="UNIMPLEMENTED",
        path=_NO_METHOD,
        is_counted=False,
    ),
    Refusal(
        name="message too large",
        method=Method.TRANSLATE,
        raw=bytes(_TOO_MANY_BYTES),
        status="RESOURCE_EXHAUSTED",
        path=Method.TRANSLATE.path,
        is_counted=False,
        weight=1,  # megabytes
    ),
)

REFUSALS: Final = (*_UNARY, *_DOCUMENTS, *_OF_THE_WIRE)
"""All of them."""


def draw_refusal(generator: random.Random) -> Refusal:
    """Return one of all."""
    return _drawn(REFUSALS, generator)


def draw_refusal_in_stream(generator: random.Random) -> Refusal:
    """Return one that a stream answers with an error, and goes on."""
    return _drawn(_UNARY, generator)


def _drawn(refusals: Sequence[Refusal], generator: random.Random) -> Refusal:
    (refusal,) = generator.choices(refusals, [refusal.weight for refusal in refusals])
    return refusal
