"""Which call comes next and when its caller leaves: pure functions of a random generator."""

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Method(enum.Enum):
    """How a caller asks."""

    UNARY = "unary"
    DOCUMENT = "document"
    STREAM = "stream"


class Moment(enum.Enum):
    """When a caller leaves."""

    AT_ONCE = "at once"
    """Before the request is admitted, as likely as not before it is read."""

    WAITING = "waiting"
    """Within the first tenth of the usual time: in the queue."""

    DECODING = "decoding"
    """Anywhere in the usual time."""

    ANSWERING = "answering"
    """When the answer is due: a stream's after its first message, another's at the usual time, a little before or
    after."""

    NEVER = "never"
    """The caller waits for the whole answer."""


_WEIGHTS = {Moment.AT_ONCE: 3, Moment.WAITING: 5, Moment.DECODING: 6, Moment.ANSWERING: 5, Moment.NEVER: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call."""

    method: Method
    moment: Moment
    delay_share: float
    """When to leave, as a share of the usual time."""

    half_closes: bool
    """Of a stream: whether the caller says that no more requests come."""


def planned_calls(methods: Sequence[Method], count: int, seed: int) -> Iterator[PlannedCall]:
    """Yield so many calls, the methods in turn."""
    generator = random.Random(seed)
    for index in range(count):
        moment, delay_share = draw_moment(generator)
        yield PlannedCall(
            method=methods[index % len(methods)],
            moment=moment,
            delay_share=delay_share,
            half_closes=moment is Moment.NEVER or generator.random() < 0.5,
        )


def draw_moment(generator: random.Random, *, may_stay: bool = True) -> tuple[Moment, float]:
    """Return when a caller leaves: the moment, and the time as a share of the usual one."""
    weights = {moment: weight for moment, weight in _WEIGHTS.items() if may_stay or moment is not Moment.NEVER}
    (moment,) = generator.choices(list(weights), list(weights.values()))
    return moment, _delay_share(moment, generator)


def _delay_share(moment: Moment, generator: random.Random) -> float:
    match moment:
        case Moment.WAITING:
            return generator.uniform(0.0, 0.1)
        case Moment.DECODING:
            return generator.uniform(0.0, 1.0)
        case Moment.ANSWERING:
            return generator.uniform(0.8, 1.2)
        case _:
            return 0.0
