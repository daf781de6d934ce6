"""Every kind of bad input, how many of each there are, and the order in which they come: pure functions of a seed."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.bad_inputs.boundaries import BOUNDARIES
from loadtests.bad_inputs.broken_messages import BROKEN_MESSAGES
from loadtests.bad_inputs.inputs import BadInput, Content, Draw, Limits
from loadtests.bad_inputs.names import NAMES
from loadtests.bad_inputs.texts import SHAPES, html_format, megabytes, shaped, unicode_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to be bad."""

    make: Callable[[Draw], Content]
    weight: float = 1.0
    """How many there are next to others. What is large is rare."""


_HEAVY: Final = 0.02
_LARGE: Final = 0.1

KINDS: Final[Mapping[str, Kind]] = {
    "unicode": Kind(make=unicode_rows, weight=1.5),
    **{name: Kind(make=shaped(shape)) for name, shape in SHAPES.items()},
    "html-format": Kind(make=html_format, weight=0.5),
    "megabytes": Kind(make=megabytes, weight=_LARGE),
    **{name: Kind(make=make) for name, make in BROKEN_MESSAGES.items()},
    **{name: Kind(make=make) for name, make in BOUNDARIES.items()},
    **{name: Kind(make=make) for name, make in NAMES.items()},
    "text-sizes": Kind(make=BOUNDARIES["text-sizes"], weight=_LARGE),
    "request-sizes": Kind(make=BOUNDARIES["request-sizes"], weight=_HEAVY),
    "document-sizes": Kind(make=BOUNDARIES["document-sizes"], weight=_LARGE),
    "message-sizes": Kind(make=BOUNDARIES["message-sizes"], weight=_LARGE),
    "compression-bombs": Kind(make=BOUNDARIES["compression-bombs"], weight=_LARGE),
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An input that is still to be made."""

    kind: str
    index: int


def plan(count: int, *, kinds: Sequence[str], seed: int) -> list[Planned]:
    """Return so many inputs to make, those of all kinds mixed; at least one of each.

    Args:
        count: at least the number of kinds.
        kinds: names.
        seed: of the order.

    Raises:
        ValueError: if there are fewer inputs than kinds.
    """
    if count < len(kinds):
        raise ValueError(f"{count} inputs are too few for {len(kinds)} kinds")
    shares = _shares(count - len(kinds), [KINDS[kind].weight for kind in kinds])
    planned = [
        Planned(kind=kind, index=index) for kind, share in zip(kinds, shares, strict=True) for index in range(1 + share)
    ]
    random.Random(seed).shuffle(planned)
    return planned


def make(planned: Planned, *, seed: int, limits: Limits) -> BadInput:
    """Return an input: the same for the same seed and limits, whatever else was made before."""
    generator = random.Random(f"{seed}/{planned.kind}/{planned.index}")
    content = KINDS[planned.kind].make(Draw(index=planned.index, generator=generator, limits=limits))
    return BadInput(kind=planned.kind, index=planned.index, content=content)


def made(planned: Sequence[Planned], *, seed: int, limits: Limits) -> Iterator[BadInput]:
    """Yield all inputs of a plan."""
    for one in planned:
        yield make(one, seed=seed, limits=limits)


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
