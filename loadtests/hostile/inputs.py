"""Bad inputs: messages, the statuses that are right for them, random choices, and hostile texts by shape.

`texts.toml` describes the shapes.
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method

_Drawn = TypeVar("_Drawn")
_GENERATE_ONLY: Final = settings(
    max_examples=2,  # the first example is always the simplest
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

LEFT: Final = "LEFT"  # status of a call that its client cancelled as planned, because the response would take too long
CHEAP: Final[Mapping[str, Any]] = {"beam_size": 1, "max_target_tokens": 3, "repetition_guard": False}  # fast decoding
NUM_ROWS: Final = 0x1100  # rows of 256 code points in all 17 planes

_WORDS: Final = (" The", " man", " reads", " a", " letter", " 2,000", " Dr", " isn't", " Paris", " x", " garden", " of")


def usual_fields(model: pb.ModelVersion) -> dict[str, Any]:
    """Return the fields of requests and documents other than the text."""
    pair = model.language_pairs[0]
    return {"source_language": pair.source_language, "target_language": pair.target_language, "options": CHEAP}


class Expected(NamedTuple):
    """The right responses to an input."""

    statuses: Sequence[str]  # of a request in a stream, those of its own response
    field: str = ""  # prefix of the path of the rejected field; empty: any


OK: Final = Expected(["OK"])


def invalid(field: str) -> Expected:
    """Expect INVALID_ARGUMENT for a field."""
    return Expected(["INVALID_ARGUMENT"], field)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """A message to send, and the right response."""

    message: bytes
    method: Method  # TranslateStream: sent between two ordinary requests of the same call
    expected: Expected
    num_characters: int  # of the texts; bytes of other messages
    metadata: Sequence[tuple[str, str | bytes]] = ()
    is_compressed: bool = False
    leaves: bool = False  # the client cancels after the first message of a document


class Draw(random.Random):
    """Random choices of one input, also from Hypothesis strategies, reproducible from the entropy.

    Args:
        entropy: seed.
        model: for which the input is made.
        index: of the input within its kind.
    """

    def __init__(self, entropy: str, *, model: pb.ModelVersion, index: int = 0) -> None:
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
        """Draw a size from 1 on a logarithmic scale."""
        return int(most ** self.random())

    def request(self, *texts: str, expected: Expected, method: Method | None = None, **fields: Any) -> BadInput:
        """Return a request, unary or in a stream; `fields` replace the usual ones."""
        message = pb.TranslateRequest(texts=texts, **{**usual_fields(self.model), **fields})
        method = method or self.choice((Method.TRANSLATE, Method.TRANSLATE_STREAM))
        return input_of(message, expected, method=method, num_characters=sum(map(len, texts)))

    def document(self, text: str, *, expected: Expected, leaves: bool = False, **fields: Any) -> BadInput:
        """Return a document; `fields` replace the usual ones."""
        message = pb.TranslateDocumentRequest(text=text, **{**usual_fields(self.model), **fields})
        return input_of(message, expected, num_characters=len(text), leaves=leaves)

    def request_or_document(self, *texts: str, expected: Expected, **fields: Any) -> BadInput:
        """Return a request, or in a quarter of the cases the document of all texts."""
        if self.random() < 0.25:
            return self.document("".join(texts), expected=expected, **fields)
        return self.request(*texts, expected=expected, **fields)


def input_of(request: Message, expected: Expected, **others: Any) -> BadInput:
    """Return the input for a request to the method of the same name; `others` replace further fields."""
    message, method = request.SerializeToString(), Method(type(request).__name__.removesuffix("Request"))
    usual = {"message": message, "method": method, "expected": expected, "num_characters": len(message)}
    return BadInput(**{**usual, **others})


def repeated(unit: str, size: int) -> str:
    """Return a unit repeated to exactly `size` characters."""
    return (unit * (size // len(unit) + 1))[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Texts of pieces that match a pattern, or of nested parts, or either."""

    summary: str
    pattern: str = ""
    has_words: bool = True
    nested: Sequence[tuple[str, str, str, str]] = ()  # head, opening, middle, closing


_DATA: Final = tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))
SHAPES: Final[Mapping[str, Shape]] = {name: Shape(**table) for name, table in _DATA["shapes"].items()}
NAMES: Final[Mapping[str, Sequence[str]]] = _DATA["names"]


def shaped(draw: Draw, size: int, *names: str) -> str:
    """Draw a text of 1 to `size` characters of one of the named shapes, or of any."""
    shape = SHAPES[draw.choice(names or sorted(SHAPES))]
    if shape.nested and (not shape.pattern or draw.random() < 0.5):
        head, opening, middle, closing = draw.choice(shape.nested)
        depth = size // len(opening + closing) + 1
        text = head + opening * depth + middle + closing * draw.choice((0, depth, depth // 2))
    else:
        pieces = draw(st.lists(_matching(shape.pattern), min_size=1, max_size=draw.choice((1, 24))))
        share = draw.choice((0.0, 0.5, 0.9)) if shape.has_words else 0.0
        text = "".join(draw.choice(_WORDS if draw.random() < share else pieces) for _ in range(size))
    return text[:size]


@cache
def _matching(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(pattern, fullmatch=True)


def row(draw: Draw, index: int) -> str:
    """Draw two code points of each column of 16 of a row, assigned or not, without surrogates."""
    columns = range(256 * index, 256 * (index + 1), 16)
    points = [point for first in columns for point in draw.sample(range(first, first + 16), 2)]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
