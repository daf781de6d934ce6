"""When calls arrive: a schedule made beforehand, so that no call waits for what became of those before it.

As text, on command lines: `poisson`, `constant`, `burst`, `burst:every=5,size=20`, `ramp`, `ramp:from=1,to=20`,
`trace:FILE`, `trace:FILE,speed=2`.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Protocol

KINDS: Final = ("poisson", "constant", "burst", "ramp", "trace")
"""What the text of arrivals begins with."""

MAX_RATE_PER_S: Final = 100_000.0
"""Beyond it nothing could send the calls, and the schedule would fill the memory."""

_DEFAULT_EVERY_S: Final = 5.0


class Arrivals(Protocol):
    """One way in which calls arrive."""

    @property
    def rate_per_s(self) -> float:
        """Calls a second in the long run."""

    @property
    def text(self) -> str:
        """What `parse_arrivals` makes the same of, given the rate."""

    @property
    def methods(self) -> Sequence[str | None]:
        """Names of the methods called, in the order of the times; None, or none left: whatever the workload draws."""

    def times(self, duration_s: float, seed: int) -> list[float]:
        """Return when calls arrive: seconds from the start, ascending, each at least 0 and below the duration.

        Raises:
            ValueError: if the duration is not above 0.
        """


class _Kind:
    """What all kinds share."""

    __slots__ = ()

    @property
    def text(self) -> str:
        return type(self).__name__.lower()

    @property
    def methods(self) -> Sequence[str | None]:
        return ()

    def times(self, duration_s: float, seed: int) -> list[float]:
        if not 0 < duration_s < math.inf:
            raise ValueError(f"no arrivals within {duration_s} s: expected a duration above 0")
        return list(_below(duration_s, self._times(duration_s, random.Random(seed))))

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:
        """Return ascending times, of the duration at least."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Poisson(_Kind):
    """Callers who know nothing of each other: exponential gaps."""

    rate_per_s: float

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:  # noqa: ARG002
        return _poisson(self.rate_per_s, generator)


@dataclass(frozen=True, slots=True)
class Constant(_Kind):
    """Equal gaps; the first call comes at once."""

    rate_per_s: float

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:  # noqa: ARG002
        return (index / self.rate_per_s for index in range(math.ceil(duration_s * self.rate_per_s)))


@dataclass(frozen=True, slots=True)
class Burst(_Kind):
    """Many calls in the same moment, again and again; the rest of the rate arrives at random in between."""

    rate_per_s: float
    every_s: float
    size: int
    """Calls of each burst; the first burst comes after half of `every_s`."""

    @property
    def text(self) -> str:
        """Its name, and both settings."""
        return f"burst:every={self.every_s!r},size={self.size}"

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:
        num_bursts = max(0, math.ceil(duration_s / self.every_s - 0.5))
        bursts = ((index + 0.5) * self.every_s for index in range(num_bursts) for _ in range(self.size))
        rest_per_s = self.rate_per_s - self.size / self.every_s
        rest = _below(duration_s, _poisson(rest_per_s, generator)) if rest_per_s > 1e-9 else ()
        return sorted([*bursts, *rest])


@dataclass(frozen=True, slots=True)
class Ramp(_Kind):
    """At random, more and more (or fewer and fewer): the rate goes evenly from one figure to another."""

    from_per_s: float
    to_per_s: float

    @property
    def rate_per_s(self) -> float:
        """The mean of both."""
        return (self.from_per_s + self.to_per_s) / 2

    @property
    def text(self) -> str:
        """Its name, and both ends."""
        return f"ramp:from={self.from_per_s!r},to={self.to_per_s!r}"

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:
        """Return the times of a steady rate of 1, moved to where as many calls are expected."""
        slope = (self.to_per_s - self.from_per_s) / duration_s
        for count in _below(self.rate_per_s * duration_s, _poisson(1.0, generator)):
            root = math.sqrt(max(0.0, self.from_per_s**2 + 2 * slope * count))
            yield 2 * count / (self.from_per_s + root)  # the stable form of (root - from) / slope; for slope 0 too


@dataclass(frozen=True, slots=True)
class Trace(_Kind):
    """What was recorded somewhere, replayed."""

    offsets_s: tuple[float, ...]
    """Ascending, the first at 0; divided by the speed."""

    recorded_methods: tuple[str | None, ...] = ()
    path: Path = Path()
    speed: float = 1.0
    """How many times as fast as recorded."""

    @property
    def rate_per_s(self) -> float:
        """Calls by the time between the first and the last."""
        return len(self.offsets_s) / max(self.offsets_s[-1], 1.0)

    @property
    def text(self) -> str:
        """Its name, the file and the speed."""
        return f"trace:{self.path.absolute()},speed={self.speed!r}"

    @property
    def methods(self) -> Sequence[str | None]:
        """As they were recorded."""
        return self.recorded_methods

    def _times(self, duration_s: float, generator: random.Random) -> Iterable[float]:  # noqa: ARG002
        return self.offsets_s


def parse_arrivals(text: str, *, rate_per_s: float) -> Arrivals:
    """Return the arrivals that a text names.

    Args:
        text: one of `KINDS`, and behind a colon its settings, as in the description of this module.
        rate_per_s: calls a second in the long run; a trace, and a ramp that names both ends, have their own.

    Raises:
        ValueError: if the text or the rate makes no sense, or a trace cannot be read; the message says what to change.
    """
    kind, _, settings = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"arrivals {text!r}: expected one of {', '.join(KINDS)}, such as burst:every=5,size=20")
    if kind == "trace":
        return _trace(settings)
    if not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise ValueError(f"no arrivals at {rate_per_s} calls/s: expected a rate above 0, at most {MAX_RATE_PER_S:g}")
    match kind:
        case "burst":
            return _burst(_numbers(text, settings, known=("every", "size")), rate_per_s)
        case "ramp":
            return _ramp(_numbers(text, settings, known=("from", "to")), rate_per_s)
        case _:
            _numbers(text, settings, known=())
            return Poisson(rate_per_s) if kind == "poisson" else Constant(rate_per_s)


def _burst(numbers: Mapping[str, float], rate_per_s: float) -> Burst:
    every_s = numbers.get("every", _DEFAULT_EVERY_S)
    size = numbers.get("size", float(max(1, math.floor(rate_per_s * every_s))))
    if every_s <= 0 or size < 1 or not size.is_integer():
        raise ValueError(
            f"burst: every={every_s:g}, size={size:g}: expected seconds above 0 and a whole number of calls"
        )
    if size / every_s > rate_per_s * (1 + 1e-9):
        raise ValueError(
            f"burst: {size:g} calls every {every_s:g} s are {size / every_s:g} a second, more than the rate of "
            f"{rate_per_s:g}: raise the rate, or make bursts smaller or rarer"
        )
    return Burst(rate_per_s, every_s, int(size))


def _ramp(numbers: Mapping[str, float], rate_per_s: float) -> Ramp:
    from_per_s = numbers.get("from", max(0.0, 2 * rate_per_s - numbers.get("to", 2 * rate_per_s)))
    to_per_s = numbers.get("to", max(0.0, 2 * rate_per_s - from_per_s))
    if min(from_per_s, to_per_s) < 0 or max(from_per_s, to_per_s) > MAX_RATE_PER_S or from_per_s + to_per_s <= 0:
        raise ValueError(f"ramp: from={from_per_s:g}, to={to_per_s:g}: expected rates of 0 or more, one above 0")
    return Ramp(from_per_s, to_per_s)


def _trace(settings: str) -> Trace:
    name, _, speed_setting = settings.partition(",speed=")
    speed = _numbers(f"trace:{settings}", f"speed={speed_setting or 1}", known=("speed",))["speed"]
    if not name or speed <= 0:
        raise ValueError(f"arrivals trace:{settings}: expected trace:FILE or trace:FILE,speed=N with N above 0")
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"trace {name}: cannot be read: {error}") from error
    calls = [_call(f"trace {name}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not calls:
        raise ValueError(f"trace {name}: has no line; expected an offset in seconds in each")
    offsets_s, methods = zip(*sorted(calls, key=lambda call: call[0]), strict=True)
    shifted = tuple((offset_s - offsets_s[0]) / speed for offset_s in offsets_s)
    return Trace(shifted, methods if any(methods) else (), Path(name), speed)


def _call(where: str, line: str) -> tuple[float, str | None]:
    """Return offset and method of a line: a bare number, or an object with `offset_s` and optionally `method`."""
    try:
        value: Any = json.loads(line)
        offset, method = (value["offset_s"], value.get("method")) if isinstance(value, dict) else (value, None)
        if math.isfinite(float(offset)) and isinstance(method, str | None):
            return float(offset), method
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f'{where}: {line[:60]!r}: expected seconds, or {{"offset_s": 1.5, "method": "Translate"}}')


def _numbers(text: str, settings: str, *, known: Sequence[str]) -> dict[str, float]:
    """Return `name=number,...` as numbers."""
    numbers = {}
    for part in settings.split(",") if settings else ():
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"arrivals {text!r}: {part!r} is no setting; known: {', '.join(known) or 'none'}")
        try:
            numbers[name] = float(value)
        except ValueError as error:
            raise ValueError(f"arrivals {text!r}: {part!r}: expected a number") from error
        if not math.isfinite(numbers[name]):
            raise ValueError(f"arrivals {text!r}: {part!r}: expected a finite number")
    return numbers


def _poisson(rate_per_s: float, generator: random.Random) -> Iterator[float]:
    """Yield times without end."""
    at_s = 0.0
    while True:
        at_s += generator.expovariate(rate_per_s)
        yield at_s


def _below(limit: float, times: Iterable[float]) -> Iterator[float]:
    """Return ascending times up to the first that is not below the limit."""
    return takewhile(lambda at_s: at_s < limit, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One call to come."""

    number: int
    """Which call of the workload it is."""

    offset_s: float
    """From the start of the run, its warm-up included."""

    method: str | None = None
    """Name of the method if the arrivals say it, as a trace may."""


def make_schedule(arrivals: Arrivals, *, warm_up_s: float, duration_s: float, seed: int) -> list[Arrival]:
    """Return all calls in the order of their times: random ones at the same rate to warm up, then the arrivals."""
    warm_up = Poisson(arrivals.rate_per_s).times(warm_up_s, seed + 1) if warm_up_s > 0 else []
    times = [*warm_up, *(warm_up_s + offset_s for offset_s in arrivals.times(duration_s, seed))]
    methods = [*[None] * len(warm_up), *arrivals.methods, *[None] * len(times)]
    return [Arrival(number=number, offset_s=offset_s, method=methods[number]) for number, offset_s in enumerate(times)]
