"""Does work grow with the square of a text? The same shape at two sizes, one twice the other."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dragoman.v1 import translation_pb2 as pb

from loadtests.bad_inputs.answers import Answer
from loadtests.bad_inputs.inputs import CHEAP, OK, BadInput, Limits, document_content, translate_content
from loadtests.bad_inputs.texts import SHAPES

_LONG_S: Final = 0.5
_UNIT_CHARACTERS: Final = 61
_KIND: Final = "growth"


class Sends(Protocol):
    """Sends an input."""

    def send(self, bad: BadInput, /) -> Answer:
        """Return what became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The same shape of text at two sizes."""

    shape: str
    method: str
    num_characters: int
    """Of the larger one."""

    half_s: float
    whole_s: float
    """What it took, the faster of some tries: the text work of a request; for a document, until its first sentence."""

    @property
    def ratio(self) -> float:
        """How many times longer twice the size takes: 2 if the work grows as the text does, 4 if with its square."""
        return self.whole_s / self.half_s if self.half_s else 1.0


def measured(caller: Sends, limits: Limits, *, shapes: Sequence[str], seed: int) -> Iterator[Growth]:
    """Yield the growth of requests and documents of each shape, up to the greatest size."""
    for shape in shapes:
        unit = SHAPES[shape](random.Random(f"{seed}/{shape}"), _UNIT_CHARACTERS)
        size = limits.max_text_characters
        half_s, whole_s = (_text_s(caller, limits, _of(unit, part)) for part in (size // 2, size))
        yield Growth(shape=shape, method="Translate", num_characters=size, half_s=half_s, whole_s=whole_s)
        size = limits.max_document_characters
        half_s, whole_s = (_first_s(caller, limits, _of(unit, part)) for part in (size // 2, size))
        yield Growth(shape=shape, method="TranslateDocument", num_characters=size, half_s=half_s, whole_s=whole_s)


def _text_s(caller: Sends, limits: Limits, text: str) -> float:
    """Return the seconds of text work that the server tells; 0 if it refuses a text of so many tokens."""
    options = pb.DecodingOptions(**{**CHEAP, "max_target_tokens": 1})
    bad = BadInput(kind=_KIND, index=0, content=translate_content(limits, text, expected=OK, options=options))

    def seconds() -> float:
        timings = [one.timings for one in caller.send(bad).responses if isinstance(one, pb.TranslateResponse)]
        return sum(timing.text.ToNanoseconds() for timing in timings) / 1e9

    return _fastest(seconds)


def _first_s(caller: Sends, limits: Limits, text: str) -> float:
    """Return the seconds until the first message of a document, whose caller leaves then."""
    bad = BadInput(kind=_KIND, index=0, content=document_content(limits, text, expected=OK, leaves_after=1))
    return _fastest(lambda: caller.send(bad).seconds)


def _fastest(measure: Callable[[], float]) -> float:
    """Return what it takes, the faster of two tries if it is short enough to be disturbed."""
    seconds = measure()
    return min(seconds, measure()) if seconds < _LONG_S else seconds


def _of(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]
