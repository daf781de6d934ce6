"""Every kind of bad input, how many of each there are, and their order: pure functions of a seed."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.stress.bad_inputs.fields import FIELDS
from loadtests.stress.bad_inputs.inputs import BadInput, Draw, Limits
from loadtests.stress.bad_inputs.messages import MESSAGES
from loadtests.stress.bad_inputs.texts import SHAPES, html_format, megabytes, shaped, unicode_rows
from loadtests.stress.drawing import drawn

KINDS: Final[Mapping[str, Callable[[Draw], BadInput]]] = {
    "unicode": unicode_rows,
    **{name: shaped(shape) for name, shape in SHAPES.items()},
    **{kind.__name__.replace("_", "-"): kind for kind in (html_format, megabytes, *MESSAGES, *FIELDS)},
}
"""By name; each draws one input."""

_LARGE: Final = ("megabytes", "text-sizes", "document-sizes", "message-sizes", "compression-bombs")
_WEIGHTS: Final = {"unicode": 1.5, "html-format": 0.5, **dict.fromkeys(_LARGE, 0.1), "request-sizes": 0.02}
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
    return drawn(
        lambda draw: KINDS[planned.kind](Draw(draw, index=planned.index, limits=limits)),
        entropy=f"{seed}/{planned.kind}/{planned.index}",
    )


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
