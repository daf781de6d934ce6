"""Every kind of bad input, how many of each there are, and their order: pure functions of a seed."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
_LARGE: Final = ("megabytes", "text-sizes", "document-sizes", "message-sizes", "compression-bombs")
_WEIGHTS: Final = {"unicode": 1.8, "html-format": 0.5, **dict.fromkeys(_LARGE, 0.1), "request-sizes": 0.02}
"""How many there are compared with others, each of which counts 1. What is large is rare."""

Planned = tuple[str, int]
"""Kind and index of an input that is still to be made."""


def plan(count: int, *, kinds: Sequence[str], seed: int) -> list[Planned]:
    """Return so many inputs to make, those of all kinds mixed; at least one of each.

    Raises:
        ValueError: if there are fewer inputs than kinds.
    """
    if count < len(kinds):
        raise ValueError(f"{count} inputs are too few for {len(kinds)} kinds")
    generator = random.Random(seed)
    weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
    counts = Counter([*kinds, *generator.choices(kinds, weights, k=count - len(kinds))])
    planned = [(kind, index) for kind in kinds for index in range(counts[kind])]
    generator.shuffle(planned)
    return planned


def make(planned: Planned, *, seed: int, limits: Limits) -> BadInput:
    """Return an input: the same for the same seed and limits, whatever else was made before."""
    kind, index = planned
    return drawn(lambda draw: KINDS[kind](Draw(draw, index=index, limits=limits)), entropy=f"{seed}/{kind}/{index}")
