"""Every kind of bad input, how many of each there are, and their order: pure functions of a seed."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.stress.bad_inputs.fields import FIELDS
from loadtests.stress.bad_inputs.inputs import BadInput, Content, Draw, Limits
from loadtests.stress.bad_inputs.messages import MESSAGES
from loadtests.stress.bad_inputs.texts import SHAPES, html_format, megabytes, shaped, unicode_rows
from loadtests.stress.drawing import drawn

KINDS: Final[Mapping[str, Callable[[Draw], Content]]] = {
    "unicode": unicode_rows,
    **{name: shaped(shape) for name, shape in SHAPES.items()},
    "html-format": html_format,
    "megabytes": megabytes,
    **MESSAGES,
    **FIELDS,
}
"""By name; each draws one input."""

_LARGE: Final = 0.1
_WEIGHTS: Final = {
    "unicode": 1.5,
    "html-format": 0.5,
    "megabytes": _LARGE,
    "text-sizes": _LARGE,
    "request-sizes": 0.02,
    "document-sizes": _LARGE,
    "message-sizes": _LARGE,
    "compression-bombs": _LARGE,
}
"""How many there are compared with others, each of which counts 1. What is large is rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An input that is still to be made."""

    kind: str
    index: int


def plan(count: int, *, kinds: Sequence[str], seed: int) -> list[Planned]:
    """Return so many inputs to make, those of all kinds mixed; at least one of each.

    Raises:
        ValueError: if there are fewer inputs than kinds.
    """
    if count < len(kinds):
        raise ValueError(f"{count} inputs are too few for {len(kinds)} kinds")
    shares = _shares(count - len(kinds), [_WEIGHTS.get(kind, 1.0) for kind in kinds])
    planned = [
        Planned(kind=kind, index=index) for kind, share in zip(kinds, shares, strict=True) for index in range(1 + share)
    ]
    random.Random(seed).shuffle(planned)
    return planned


def make(planned: Planned, *, seed: int, limits: Limits) -> BadInput:
    """Return an input: the same for the same seed and limits, whatever else was made before."""
    content = drawn(
        lambda draw: KINDS[planned.kind](Draw(draw, index=planned.index, limits=limits)),
        entropy=f"{seed}/{planned.kind}/{planned.index}",
    )
    return BadInput(kind=planned.kind, index=planned.index, content=content)


def _shares(count: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to a count, in proportion to the weights up to one."""
    total = sum(weights)
    shares, given, reached = [], 0, 0.0
    for weight in weights:
        reached += weight
        share = round(count * reached / total) - given
        shares.append(share)
        given += share
    return shares
