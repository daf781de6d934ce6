"""When calls arrive: a schedule made beforehand, so that no call waits for what became of those before it.

As text, on command lines: `poisson`, `constant`, `burst`, `burst:every=5,size=20`, `ramp`, `ramp:from=1,to=20`,
`trace:FILE`, `trace:FILE,speed=2`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

KINDS: Final = ("poisson", "constant", "burst", "ramp", "trace")
"""What the text of arrivals begins with."""

MAX_RATE_PER_S: Final = 100_000.0
"""Beyond it nothing could send the calls, and the schedule would fill the memory."""

_DEFAULT_EVERY_S: Final = 5.0

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One way in which calls arrive; the functions below make each kind."""

    text: str
    """What `parse_arrivals` makes the same of, given the rate."""

    rate_per_s: float
    """Calls a second in the long run."""

    draw: Callable[[float, np.random.Generator], Times]
    """Returns times within a duration, in any order; those beyond it do not count. Can be sent to another process."""

    methods: Sequence[str | None] = ()
    """Names of the methods called, in the order of the times; None, or none left: whatever the workload draws."""

    def times(self, duration_s: float, seed: int) -> list[float]:
        """Return when calls arrive: seconds from the start, ascending, each at least 0 and below the duration.

        Raises:
            ValueError: if the duration is not above 0.
        """
        if not 0 < duration_s < math.inf:
            raise ValueError(f"no arrivals within {duration_s} s: expected a duration above 0")
        times = np.sort(self.draw(duration_s, np.random.default_rng(seed % 2**64)))
        within: list[float] = times[times < duration_s].tolist()
        return within


def poisson(rate_per_s: float) -> Arrivals:
    """Return arrivals of callers who know nothing of each other: exponential gaps."""
    return Arrivals(text="poisson", rate_per_s=rate_per_s, draw=partial(_random, rate_per_s))


def constant(rate_per_s: float) -> Arrivals:
    """Return arrivals with equal gaps; the first call comes at once."""
    return Arrivals(text="constant", rate_per_s=rate_per_s, draw=partial(_regular, rate_per_s))


def burst(rate_per_s: float, every_s: float, size: int) -> Arrivals:
    """Return bursts, the first one after half of `every_s`; the rest of the rate arrives at random in between."""
    text = f"burst:every={every_s!r},size={size}"
    return Arrivals(text=text, rate_per_s=rate_per_s, draw=partial(_bursts, rate_per_s, every_s, size))


def ramp(from_per_s: float, to_per_s: float) -> Arrivals:
    """Return random arrivals whose rate goes evenly from one figure to another."""
    text = f"ramp:from={from_per_s!r},to={to_per_s!r}"
    mean_per_s = (from_per_s + to_per_s) / 2
    return Arrivals(text=text, rate_per_s=mean_per_s, draw=partial(_ramped, from_per_s, to_per_s))


def trace(path: Path, calls: Sequence[tuple[float, str | None]], *, speed: float = 1.0) -> Arrivals:
    """Return recorded calls, each an offset in seconds and perhaps a method, replayed so many times as fast."""
    offsets_s, methods = zip(*sorted(calls, key=lambda call: call[0]), strict=True)
    shifted = (np.array(offsets_s) - offsets_s[0]) / speed
    return Arrivals(
        text=f"trace:{path.absolute()},speed={speed!r}",
        rate_per_s=len(shifted) / max(float(shifted[-1]), 1.0),
        draw=partial(_recorded, shifted),
        methods=methods if any(methods) else (),
    )


def _random(rate_per_s: float, duration_s: float, generator: np.random.Generator) -> Times:
    """Given their number, the times of a Poisson process are uniform."""
    return generator.uniform(0.0, duration_s, generator.poisson(rate_per_s * duration_s))


def _regular(rate_per_s: float, duration_s: float, _: np.random.Generator) -> Times:
    return np.arange(math.ceil(duration_s * rate_per_s)) / rate_per_s


def _bursts(rate_per_s: float, every_s: float, size: int, duration_s: float, generator: np.random.Generator) -> Times:
    num_bursts = max(0, math.ceil(duration_s / every_s - 0.5))
    bursts = np.repeat((np.arange(num_bursts) + 0.5) * every_s, size)
    rest_per_s = max(0.0, rate_per_s - size / every_s)
    return np.concatenate([bursts, _random(rest_per_s if rest_per_s > 1e-9 else 0.0, duration_s, generator)])


def _ramped(from_per_s: float, to_per_s: float, duration_s: float, generator: np.random.Generator) -> Times:
    """Return the times of a steady rate of 1, moved to where as many calls are expected."""
    slope = (to_per_s - from_per_s) / duration_s
    counts = _random(1.0, (from_per_s + to_per_s) / 2 * duration_s, generator)
    roots = np.sqrt(np.maximum(0.0, from_per_s**2 + 2 * slope * counts))
    moved: Times = 2 * counts / (from_per_s + roots)  # the stable form of (root - from) / slope; for slope 0 too
    return moved


def _recorded(offsets_s: Times, _: float, __: np.random.Generator) -> Times:
    return offsets_s


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
        return _parse_trace(settings)
    if not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise ValueError(f"no arrivals at {rate_per_s} calls/s: expected a rate above 0, at most {MAX_RATE_PER_S:g}")
    match kind:
        case "burst":
            return _parse_burst(_numbers(text, settings, known=("every", "size")), rate_per_s)
        case "ramp":
            return _parse_ramp(_numbers(text, settings, known=("from", "to")), rate_per_s)
        case _:
            _numbers(text, settings, known=())
            return poisson(rate_per_s) if kind == "poisson" else constant(rate_per_s)


def _parse_burst(numbers: Mapping[str, float], rate_per_s: float) -> Arrivals:
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
    return burst(rate_per_s, every_s, int(size))


def _parse_ramp(numbers: Mapping[str, float], rate_per_s: float) -> Arrivals:
    from_per_s = numbers.get("from", max(0.0, 2 * rate_per_s - numbers.get("to", 2 * rate_per_s)))
    to_per_s = numbers.get("to", max(0.0, 2 * rate_per_s - from_per_s))
    if min(from_per_s, to_per_s) < 0 or max(from_per_s, to_per_s) > MAX_RATE_PER_S or from_per_s + to_per_s <= 0:
        raise ValueError(f"ramp: from={from_per_s:g}, to={to_per_s:g}: expected rates of 0 or more, one above 0")
    return ramp(from_per_s, to_per_s)


def _parse_trace(settings: str) -> Arrivals:
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
    return trace(Path(name), calls, speed=speed)


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


class Arrival(NamedTuple):
    """One call to come: which call of the workload, when (from the start, warm-up included), and perhaps its method."""

    number: int
    offset_s: float
    method: str | None


def make_schedule(arrivals: Arrivals, *, warm_up_s: float, duration_s: float, seed: int) -> list[Arrival]:
    """Return all calls in the order of their times: random ones at the same rate to warm up, then the arrivals."""
    warm_up = poisson(arrivals.rate_per_s).times(warm_up_s, seed + 1) if warm_up_s > 0 else []
    times = [*warm_up, *(warm_up_s + offset_s for offset_s in arrivals.times(duration_s, seed))]
    methods = [*[None] * len(warm_up), *arrivals.methods, *[None] * len(times)]
    return [Arrival(number, offset_s, methods[number]) for number, offset_s in enumerate(times)]
