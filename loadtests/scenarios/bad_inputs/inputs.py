"""One bad input: what is sent, which answers are right, and how its parts are drawn."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from loadtests.generator.calls import Method

_Drawn = TypeVar("_Drawn")
_GENERATE_ONLY: Final = settings(
    max_examples=2,  # the first one is always the simplest
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

LEFT: Final = "LEFT"
"""Status of a call that its caller cancelled as planned: the whole answer would have taken too long."""

CHEAP: Final[Mapping[str, Any]] = {"beam_size": 1, "max_target_tokens": 3, "repetition_guard": False}
"""Options with which decoding takes little time: it is not what these inputs test."""


def usual_fields(model: pb.ModelVersion) -> dict[str, Any]:
    """Return what requests and documents have beside text: the languages of a model and options that cost little."""
    pair = model.language_pairs[0]
    return {"source_language": pair.source_language, "target_language": pair.target_language, "options": CHEAP}


class Expected(NamedTuple):
    """Which answers to an input are right."""

    statuses: Sequence[str]  # names; of a request of a stream, that of its own answer
    field: str = ""  # prefix of the path of the field that a rejection names; empty: any


OK: Final = Expected(["OK"])


def invalid(field: str) -> Expected:
    """Expect that a field is rejected as out of range."""
    return Expected(["INVALID_ARGUMENT"], field)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """What a kind draws: the message, how it is sent, and the right answers to it."""

    message: bytes
    method: Method  # one for TranslateStream is sent between two ordinary requests of the same call
    expected: Expected
    num_characters: int  # of the texts; bytes of what has none
    metadata: Sequence[tuple[str, str | bytes]] = ()
    is_compressed: bool = False
    leaves: bool = False  # its caller cancels once the first message of a document is there


class Draw(random.Random):
    """Draws the parts of one input at random, or from a Hypothesis strategy: the same for the same entropy."""

    def __init__(self, entropy: str, *, model: pb.ModelVersion, index: int = 0) -> None:
        """Draw the input of this index of its kind, for this model."""
        super().__init__(entropy)
        self.model = model
        self.index = index

    def __call__(self, strategy: st.SearchStrategy[_Drawn]) -> _Drawn:
        """Draw from a strategy."""
        found: list[_Drawn] = []

        @seed(str(self.random()))
        @_GENERATE_ONLY
        @given(strategy)
        def collect(value: _Drawn) -> None:
            found.append(value)

        collect()
        return found[-1]

    def size(self, most: int) -> int:
        """Draw a size, 1 or more, of which small ones are likelier."""
        return int(most ** self.random())

    def request(self, *texts: str, expected: Expected, method: Method | None = None, **fields: Any) -> BadInput:
        """Return a request of these texts, alone or in a stream; `fields` replace the usual ones."""
        message = pb.TranslateRequest(texts=texts, **{**usual_fields(self.model), **fields})
        method = method or self.choice((Method.TRANSLATE, Method.TRANSLATE_STREAM))
        return call(message, expected, method=method, num_characters=sum(map(len, texts)))

    def document(self, text: str, *, expected: Expected, leaves: bool = False, **fields: Any) -> BadInput:
        """Return a document; `fields` replace the usual ones."""
        message = pb.TranslateDocumentRequest(text=text, **{**usual_fields(self.model), **fields})
        return call(message, expected, num_characters=len(text), leaves=leaves)

    def request_or_document(self, *texts: str, expected: Expected, **fields: Any) -> BadInput:
        """Return a request of these texts, or now and then the document of them all."""
        if self.random() < 0.25:
            return self.document("".join(texts), expected=expected, **fields)
        return self.request(*texts, expected=expected, **fields)


def call(request: Message, expected: Expected, **others: Any) -> BadInput:
    """Return the input of a request to the method that its type is named after; `others` replace what it says."""
    message, method = request.SerializeToString(), Method(type(request).__name__.removesuffix("Request"))
    found = {"message": message, "method": method, "expected": expected, "num_characters": len(message)}
    return BadInput(**{**found, **others})


def repeated(unit: str, size: int) -> str:
    """Return a text of exactly so many characters, one unit again and again."""
    return (unit * (size // len(unit) + 1))[:size]
