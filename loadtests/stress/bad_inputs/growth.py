"""Does work grow with the square of a text? The same shape at two sizes, one twice the other."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.bad_inputs.inputs import CHEAP, OK, BadInput, Draw, Limits, document_input, translate_input
from loadtests.stress.bad_inputs.sender import Answer
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.stress.drawing import drawn
from loadtests.wire import Method

_CLEAR_RATIO: Final = 2.5
"""Work that grows no faster is not measured again; what looks steeper may have been disturbed by other work."""

_MAX_TRIES: Final = 4
_UNIT_CHARACTERS: Final = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The same shape of text at two sizes, of which the larger has `num_characters`.

    Times are the fastest of some tries: the text work of a request; for a document, until its first sentence.
    """

    shape: str
    method: str
    num_characters: int
    half_s: float
    whole_s: float

    @property
    def ratio(self) -> float:
        """How many times longer twice the size takes: 2 if the work grows as the text does, 4 if with its square."""
        return self.whole_s / self.half_s if self.half_s else 1.0


def measured(
    send: Callable[[BadInput], Answer], limits: Limits, *, shapes: Sequence[str], seed: int
) -> Iterator[Growth]:
    """Yield the growth of requests and documents of each shape, up to the greatest size."""
    sizes = {Method.TRANSLATE: limits.max_text_characters, Method.TRANSLATE_DOCUMENT: limits.max_document_characters}

    def seconds(method: Method, text: str) -> float:
        if method is Method.TRANSLATE_DOCUMENT:
            return send(document_input(limits, text, expected=OK, leaves_after=1)).seconds
        options = pb.DecodingOptions(**{**CHEAP, "max_target_tokens": 1})
        responses = send(translate_input(limits, text, expected=OK, options=options)).responses
        timings = [one.timings for one in responses if isinstance(one, pb.TranslateResponse)]
        return sum(timing.text.ToNanoseconds() for timing in timings) / 1e9

    for shape in shapes:
        unit = drawn(partial(_unit, shape), entropy=f"{seed}/{shape}")
        for method, most in sizes.items():
            text = (unit * (most // len(unit) + 1))[:most]
            half_s = whole_s = math.inf
            for _ in range(_MAX_TRIES):
                half_s = min(half_s, seconds(method, text[: most // 2]))
                whole_s = min(whole_s, seconds(method, text))
                if whole_s <= _CLEAR_RATIO * half_s:
                    break
            yield Growth(shape=shape, method=method.value, num_characters=most, half_s=half_s, whole_s=whole_s)


def _unit(shape: str, draw: Callable[..., Any]) -> str:
    return SHAPES[shape].text(Draw(draw), _UNIT_CHARACTERS)
