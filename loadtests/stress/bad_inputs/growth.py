"""Does work grow with the square of a text? The same shape at two sizes, one twice the other."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.bad_inputs.inputs import (
    CHEAP,
    OK,
    BadInput,
    Draw,
    Limits,
    document_input,
    repeated,
    translate_input,
)
from loadtests.stress.bad_inputs.sender import Answer
from loadtests.stress.bad_inputs.texts import SHAPES, Shape
from loadtests.stress.drawing import drawn

_CLEAR_RATIO: Final = 2.5
"""Work that grows no faster is not measured again; what looks steeper may have been disturbed by other work."""

_MAX_TRIES: Final = 4
_UNIT_CHARACTERS: Final = 61


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
    """What it took, the fastest of some tries: the text work of a request; for a document, until its first sentence."""

    @property
    def ratio(self) -> float:
        """How many times longer twice the size takes: 2 if the work grows as the text does, 4 if with its square."""
        return self.whole_s / self.half_s if self.half_s else 1.0


def measured(sender: Sends, limits: Limits, *, shapes: Sequence[str], seed: int) -> Iterator[Growth]:
    """Yield the growth of requests and documents of each shape, up to the greatest size."""
    for shape in shapes:
        unit = drawn(partial(_unit, SHAPES[shape]), entropy=f"{seed}/{shape}")
        for method, most, measure in (
            ("Translate", limits.max_text_characters, _text_s),
            ("TranslateDocument", limits.max_document_characters, _first_s),
        ):
            half_s = whole_s = math.inf
            for _ in range(_MAX_TRIES):
                half_s = min(half_s, measure(sender, limits, repeated(unit, most // 2)))
                whole_s = min(whole_s, measure(sender, limits, repeated(unit, most)))
                if whole_s <= _CLEAR_RATIO * half_s:
                    break
            yield Growth(shape=shape, method=method, num_characters=most, half_s=half_s, whole_s=whole_s)


def _unit(shape: Shape, draw: Callable[..., Any]) -> str:
    return shape.text(Draw(draw), _UNIT_CHARACTERS)


def _text_s(sender: Sends, limits: Limits, text: str) -> float:
    """Return the seconds of text work of a request, as the answer tells them."""
    options = pb.DecodingOptions(**{**CHEAP, "max_target_tokens": 1})
    bad = translate_input(limits, text, expected=OK, options=options)
    timings = [one.timings for one in sender.send(bad).responses if isinstance(one, pb.TranslateResponse)]
    return sum(timing.text.ToNanoseconds() for timing in timings) / 1e9


def _first_s(sender: Sends, limits: Limits, text: str) -> float:
    """Return the seconds until the first message of a document, whose caller cancels then."""
    bad = document_input(limits, text, expected=OK, leaves_after=1)
    return sender.send(bad).seconds
