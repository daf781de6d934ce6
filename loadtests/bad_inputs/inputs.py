"""One bad input: what is sent, and which answers are right."""

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests import wire

Metadata = tuple[tuple[str, str | bytes], ...]
"""Keys and values, as gRPC takes them."""


class Method(enum.Enum):
    """How an input is sent; the value is the path of the call."""

    UNARY = wire.TRANSLATE
    DOCUMENT = wire.TRANSLATE_DOCUMENT
    STREAM = wire.TRANSLATE_STREAM
    """Between two ordinary requests of the same call."""

    GET_MODEL = wire.Method.GET_MODEL.path
    LOAD_MODEL = wire.Method.LOAD_MODEL.path
    UNLOAD_MODEL = "/dragoman.v1.ModelAdminService/UnloadModel"
    SET_MODEL_LABEL = wire.Method.SET_MODEL_LABEL.path


LEFT: Final = "LEFT"
"""Status of a call that its caller left as planned: the work would have taken too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server takes: told by the server where it tells it, else its default settings."""

    max_texts: int = 128
    max_text_characters: int = 10_000
    max_document_characters: int = 1_000_000
    max_target_tokens: int = 512
    max_request_characters: int = 100_000
    """Over all texts of a request."""

    max_message_bytes: int = 4 * 1024 * 1024
    max_metadata_bytes: int = 16 * 1024
    source_language: str = "en"
    target_language: str = "de"

    @classmethod
    def told_by(cls, response: pb.ListModelsResponse) -> "Limits":
        """Return those of the first model that is ready.

        Raises:
            ValueError: if none is.
        """
        for version in (version for model in response.models for version in model.versions):
            if version.state == pb.MODEL_STATE_READY:
                pair, limits = version.language_pairs[0], version.limits
                return cls(
                    max_texts=limits.max_texts,
                    max_text_characters=limits.max_text_characters,
                    max_document_characters=limits.max_document_characters,
                    max_target_tokens=limits.max_target_tokens,
                    source_language=pair.source_language,
                    target_language=pair.target_language,
                )
        raise ValueError("no model of the server is ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Which answers to an input are right."""

    statuses: frozenset[str]
    """Names; of a request of a stream, that of its own answer."""

    field: str = ""
    """How the path of the field begins that a refusal names; empty: whichever."""


OK: Final = Expected(statuses=frozenset({"OK"}))


def refused(*statuses: str, field: str = "") -> Expected:
    """Return the expectation that an input is refused with one of the statuses, for one field."""
    return Expected(statuses=frozenset(statuses), field=field)


def invalid(field: str) -> Expected:
    """Return the expectation that a field is refused as out of range."""
    return refused("INVALID_ARGUMENT", field=field)


def possibly(*statuses: str, field: str = "") -> Expected:
    """Return the expectation that an input is answered, or refused with one of the statuses."""
    return Expected(statuses=frozenset({"OK", *statuses}), field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a kind makes up: the message and the right answers to it; how it is sent may be left open."""

    message: bytes
    expected: Expected
    method: Method = Method.UNARY
    metadata: Metadata = ()
    num_characters: int = 0
    """Of its texts."""

    leaves_after: int | None = None
    """Messages of a document after which the caller has seen enough."""

    is_named: bool = False
    """Whether it brings a request id of its own, which must be left alone."""

    is_compressed: bool = False
    """Whether it is sent in gzip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """One input, which its kind, index and seed make again."""

    kind: str
    index: int
    content: Content

    @property
    def method(self) -> Method:
        """How it is sent."""
        return self.content.method


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a kind makes an input of."""

    index: int
    generator: random.Random
    limits: Limits


CHEAP: Final[Mapping[str, Any]] = {"beam_size": 1, "max_target_tokens": 3, "repetition_guard": False}
"""Options with which decoding takes little: it is not what bad texts are bad for."""


def request_fields(limits: Limits) -> dict[str, Any]:
    """Return the languages of the model."""
    return {"source_language": limits.source_language, "target_language": limits.target_language}


def translate_content(
    limits: Limits,
    *texts: str,
    expected: Expected,
    method: Method = Method.UNARY,
    is_named: bool = False,
    options: pb.DecodingOptions | None = None,
    **fields: Any,
) -> Content:
    """Return a TranslateRequest of these texts, sent alone or in a stream; `fields` go in place of others."""
    chosen = pb.DecodingOptions(**CHEAP) if options is None else options
    request = pb.TranslateRequest(texts=texts, options=chosen, **{**request_fields(limits), **fields})
    return Content(
        message=request.SerializeToString(),
        expected=expected,
        method=method,
        is_named=is_named,
        num_characters=sum(map(len, texts)),
    )


def document_content(
    limits: Limits,
    text: str,
    *,
    expected: Expected,
    leaves_after: int | None = None,
    options: pb.DecodingOptions | None = None,
) -> Content:
    """Return a TranslateDocumentRequest."""
    chosen = pb.DecodingOptions(**CHEAP) if options is None else options
    request = pb.TranslateDocumentRequest(text=text, options=chosen, **request_fields(limits))
    return Content(
        message=request.SerializeToString(),
        expected=expected,
        method=Method.DOCUMENT,
        num_characters=len(text),
        leaves_after=leaves_after,
    )
