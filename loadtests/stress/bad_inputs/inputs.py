"""One bad input: what is sent, which answers are right, and how its parts are drawn."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dragoman.v1 import translation_pb2 as pb
from hypothesis import strategies as st

from loadtests.wire import Method

_Drawn = TypeVar("_Drawn")


LEFT: Final = "LEFT"
"""Status of a call that its caller cancelled as planned: the whole answer would have taken too long."""

_TOLD_LIMITS: Final = ("max_texts", "max_text_characters", "max_document_characters", "max_target_tokens")
CHEAP: Final[Mapping[str, Any]] = {"beam_size": 1, "max_target_tokens": 3, "repetition_guard": False}
"""Options with which decoding takes little time: it is not what these inputs test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server accepts: as it says itself where it does, else its default settings."""

    max_texts: int = 128
    max_text_characters: int = 10_000
    max_document_characters: int = 1_000_000
    max_target_tokens: int = 512
    max_request_characters: int = 100_000
    max_message_bytes: int = 4 * 1024 * 1024
    max_metadata_bytes: int = 16 * 1024
    source_language: str = "en"
    target_language: str = "de"

    @classmethod
    def from_models(cls, response: pb.ListModelsResponse) -> "Limits":
        """Return the limits of the first version that is ready.

        Raises:
            ValueError: if none is.
        """
        for version in (version for model in response.models for version in model.versions):
            if version.state == pb.MODEL_STATE_READY:
                languages, limits = version.language_pairs[0], version.limits
                told = {name: getattr(limits, name) for name in _TOLD_LIMITS}
                return cls(**told, source_language=languages.source_language, target_language=languages.target_language)
        raise ValueError("no model of the server is ready")

    @property
    def languages(self) -> dict[str, Any]:
        """Fields of a request that name the languages of the model."""
        return {"source_language": self.source_language, "target_language": self.target_language}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Which answers to an input are right."""

    statuses: frozenset[str]
    """Names; of a request of a stream, that of its own answer."""

    field: str = ""
    """Prefix of the path of the field that a rejection names; empty: any."""


OK: Final = Expected(statuses=frozenset({"OK"}))


def rejected(*statuses: str, field: str = "") -> Expected:
    """Expect a rejection with one of the statuses, for one field."""
    return Expected(statuses=frozenset(statuses), field=field)


def invalid(field: str) -> Expected:
    """Expect that a field is rejected as out of range."""
    return rejected("INVALID_ARGUMENT", field=field)


def possibly(*statuses: str, field: str = "") -> Expected:
    """Expect an answer, or a rejection with one of the statuses."""
    return rejected("OK", *statuses, field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """What a kind draws: the message, how it is sent, and the right answers to it."""

    message: bytes
    expected: Expected
    method: Method = Method.TRANSLATE
    """One for TranslateStream is sent between two ordinary requests of the same call."""

    metadata: tuple[tuple[str, str | bytes], ...] = ()
    num_characters: int = 0
    leaves_after: int | None = None
    """Messages of a document after which the caller cancels."""

    has_request_id: bool = False
    """Whether it brings a request id of its own, which is left alone in a stream."""

    is_compressed: bool = False


class Draw:
    """Draws the parts of one input from Hypothesis strategies."""

    def __init__(self, draw: Callable[..., Any], *, index: int = 0, limits: Limits | None = None) -> None:
        self._draw = draw
        self.index = index
        self.limits = limits or Limits()

    def __call__(self, strategy: st.SearchStrategy[_Drawn]) -> _Drawn:
        """Draw from a strategy."""
        drawn: _Drawn = self._draw(strategy)
        return drawn

    def choice(self, values: Sequence[_Drawn]) -> _Drawn:
        """Draw one of the values."""
        return self(st.sampled_from(values))

    def integer(self, low: int, high: int) -> int:
        """Draw a number; both ends are included."""
        return self(st.integers(low, high))

    def chance(self, share: float) -> bool:
        """Draw True with this probability."""
        return self.integer(1, 100) <= 100 * share

    def generator(self) -> random.Random:
        """Draw a random generator, for what is longer than a strategy draws."""
        return random.Random(self.integer(0, 2**32 - 1))

    def request(self, *texts: str, **fields: Any) -> BadInput:
        """Return a TranslateRequest of these texts, alone or in a stream."""
        method = self.choice((Method.TRANSLATE, Method.TRANSLATE_STREAM))
        return translate_input(self.limits, *texts, method=method, **fields)


def translate_input(
    limits: Limits,
    *texts: str,
    expected: Expected,
    method: Method = Method.TRANSLATE,
    has_request_id: bool = False,
    options: pb.DecodingOptions | None = None,
    **fields: Any,
) -> BadInput:
    """Return a TranslateRequest of these texts, sent alone or in a stream; `fields` replace others."""
    chosen = pb.DecodingOptions(**CHEAP) if options is None else options
    request = pb.TranslateRequest(texts=texts, options=chosen, **{**limits.languages, **fields})
    return BadInput(
        message=request.SerializeToString(),
        expected=expected,
        method=method,
        has_request_id=has_request_id,
        num_characters=sum(map(len, texts)),
    )


def document_input(
    limits: Limits,
    text: str,
    *,
    expected: Expected,
    leaves_after: int | None = None,
    options: pb.DecodingOptions | None = None,
) -> BadInput:
    """Return a TranslateDocumentRequest."""
    chosen = pb.DecodingOptions(**CHEAP) if options is None else options
    request = pb.TranslateDocumentRequest(text=text, options=chosen, **limits.languages)
    return BadInput(
        message=request.SerializeToString(),
        expected=expected,
        method=Method.TRANSLATE_DOCUMENT,
        num_characters=len(text),
        leaves_after=leaves_after,
    )


def repeated(unit: str, size: int) -> str:
    """Return a text of exactly so many characters, one unit again and again."""
    return (unit * (size // len(unit) + 1))[:size]
