"""Arrival processes: the schedule of calls, made before the run so that no call waits for another."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

_SETTINGS: Final[Mapping[str, Sequence[str]]] = {  # of each kind of arrivals
    "poisson": (),
    "constant": (),
    "burst": ("every", "size"),
    "ramp": ("from", "to"),
    "trace": ("speed",),
}
_MAX_RATE_PER_S: Final = 100_000.0  # a longer schedule would fill the memory
_DEFAULT_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process. Each process of a run computes the same times from it.

    poisson: independent callers, exponential gaps. constant: equal gaps, first call at 0. burst: `size` calls at once
    every `every` seconds, first after half of `every`; the rest of the rate arrives at random. ramp: random, at a rate
    that changes linearly. trace: recorded calls, `speed` times as fast.
    """

    text: str  # `parse_arrivals(text, rate_per_s=...)` returns an equal value
    rate_per_s: float  # long-term mean
    settings: Mapping[str, float] = field(default_factory=dict)  # of a burst or a ramp
    offsets_s: Sequence[float] = ()  # of a trace, ascending from 0
    methods: Sequence[str | None] = ()  # of a trace, in the order of the times; None: drawn from the workload

    def times(self, duration_s: float, seed: int) -> list[float]:
        """Return the arrival times in seconds, ascending, at least 0 and below the duration.

        Raises ValueError if the duration is not positive and finite.
        """
        if not 0 < duration_s < math.inf:
            raise ValueError(f"duration {duration_s}: must be positive and finite")
        times = np.sort(self._draw(duration_s, np.random.default_rng(seed % 2**64)))
        within: list[float] = times[times < duration_s].tolist()
        return within

    def _draw(self, duration_s: float, generator: np.random.Generator) -> Any:
        def random(num_expected: float, until: float) -> Any:  # a Poisson process, given the number of its points
            return generator.uniform(0.0, until, generator.poisson(num_expected))

        match self.text.partition(":")[0]:
            case "constant":
                return np.arange(math.ceil(duration_s * self.rate_per_s)) / self.rate_per_s
            case "burst":
                every_s, size = self.settings["every"], int(self.settings["size"])
                starts_s = (np.arange(max(0, math.ceil(duration_s / every_s - 0.5))) + 0.5) * every_s
                rest_per_s = self.rate_per_s - size / every_s
                rest = random(rest_per_s * duration_s if rest_per_s > 1e-9 else 0.0, duration_s)
                return np.concatenate([np.repeat(starts_s, size), rest])
            case "ramp":  # map a Poisson process of rate 1 through the inverse of the cumulative rate
                start_per_s, end_per_s = self.settings["from"], self.settings["to"]
                num_calls = (start_per_s + end_per_s) / 2 * duration_s
                counts, slope = random(num_calls, num_calls), (end_per_s - start_per_s) / duration_s
                roots = np.sqrt(np.maximum(0.0, start_per_s**2 + 2 * slope * counts))
                return 2 * counts / (start_per_s + roots)  # stable form of (root - start) / slope, also for slope 0
            case "trace":
                return np.array(self.offsets_s)
            case _:
                return random(self.rate_per_s * duration_s, duration_s)


def poisson(rate_per_s: float) -> Arrivals:
    """Return Poisson arrivals."""
    return Arrivals("poisson", rate_per_s)


def parse_arrivals(text: str, *, rate_per_s: float) -> Arrivals:
    """Parse `KIND[:name=value,...]`, such as `burst:every=5,size=20`.

    Args:
        text: the arrivals.
        rate_per_s: long-term mean; ignored by a trace, and by a ramp with both ends.

    Raises:
        ValueError: if the text or the rate is invalid, or a trace cannot be read.
    """
    kind, _, settings = text.partition(":")
    if kind not in _SETTINGS:
        raise ValueError(f"arrivals {text!r}: expected one of {', '.join(_SETTINGS)}, such as burst:every=5,size=20")
    if kind == "trace":
        name, _, speed = settings.partition(",speed=")
        return _read_trace(name, **_numbers(text, f"speed={speed or 1}"))
    if not 0 < rate_per_s <= _MAX_RATE_PER_S:
        raise ValueError(f"rate {rate_per_s}: must be above 0 and at most {_MAX_RATE_PER_S:g} calls/s")
    numbers = _numbers(text, settings)
    if kind == "burst":
        every_s = numbers.setdefault("every", _DEFAULT_EVERY_S)
        size = numbers.setdefault("size", max(1, math.floor(rate_per_s * every_s)))
        given = f"burst: every={every_s:g}, size={size:g}"
        if every_s <= 0 or size < 1 or size % 1:
            raise ValueError(f"{given}: every must be positive and size a positive integer")
        if size / every_s > rate_per_s * (1 + 1e-9):
            raise ValueError(f"{given}: {size / every_s:g} calls/s exceed the rate of {rate_per_s:g}; raise the rate")
    if kind == "ramp":
        start_per_s = numbers.setdefault("from", max(0.0, 2 * rate_per_s - numbers.get("to", 2 * rate_per_s)))
        end_per_s = numbers.setdefault("to", max(0.0, 2 * rate_per_s - start_per_s))
        rate_per_s = (start_per_s + end_per_s) / 2
        if min(start_per_s, end_per_s) < 0 or max(start_per_s, end_per_s) > _MAX_RATE_PER_S or rate_per_s <= 0:
            raise ValueError(f"ramp: from={start_per_s:g}, to={end_per_s:g}: must be at least 0, one of them above 0")
    shown = ",".join(f"{name}={numbers[name]!r}" for name in _SETTINGS[kind])
    return Arrivals(f"{kind}:{shown}" if shown else kind, rate_per_s, settings=numbers)


def _numbers(text: str, settings: str) -> dict[str, float]:
    known, numbers = _SETTINGS[text.partition(":")[0]], {}
    for part in settings.split(",") if settings else ():
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"arrivals {text!r}: unknown setting {part!r}; known: {', '.join(known) or 'none'}")
        try:
            numbers[name] = float(value)
        except ValueError:
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]):
            raise ValueError(f"arrivals {text!r}: {part!r}: expected a finite number")
    return numbers


def _read_trace(name: str, *, speed: float) -> Arrivals:
    if not name or speed <= 0:
        raise ValueError(f"arrivals trace:{name},speed={speed:g}: expected trace:FILE,speed=N with N above 0")
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"trace {name}: cannot be read: {error}") from error
    calls = [_read_call(f"trace {name}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not calls:
        raise ValueError(f"trace {name}: is empty; expected an offset in seconds per line")
    moments_s, methods = zip(*sorted(calls, key=lambda call: call[0]), strict=True)
    offsets_s = [(moment_s - moments_s[0]) / speed for moment_s in moments_s]
    text, rate_per_s = f"trace:{Path(name).absolute()},speed={speed!r}", len(calls) / max(offsets_s[-1], 1.0)
    return Arrivals(text, rate_per_s, offsets_s=offsets_s, methods=methods if any(methods) else ())


def _read_call(where: str, line: str) -> tuple[float, str | None]:
    """Return offset and method of a line: a number, or an object with `offset_s` and optionally `method`."""
    try:
        value: Any = json.loads(line)
        offset, method = (value["offset_s"], value.get("method")) if isinstance(value, dict) else (value, None)
        if math.isfinite(float(offset)) and isinstance(method, str | None):
            return float(offset), method
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f'{where}: {line[:60]!r}: expected seconds or {{"offset_s": 1.5, "method": "Translate"}}')


class Arrival(NamedTuple):
    """A scheduled call."""

    number: int  # of the call in the workload
    offset_s: float  # from the start, warm-up included
    method: str | None  # None: drawn from the workload


def make_schedule(arrivals: Arrivals, *, warm_up_s: float, duration_s: float, seed: int) -> list[Arrival]:
    """Return all calls in order: Poisson arrivals at the same rate to warm up, then the arrivals."""
    warm_up = poisson(arrivals.rate_per_s).times(warm_up_s, seed + 1) if warm_up_s > 0 else []
    times = [*warm_up, *(warm_up_s + offset_s for offset_s in arrivals.times(duration_s, seed))]
    methods = [*[None] * len(warm_up), *arrivals.methods, *[None] * len(times)]
    return [Arrival(number, offset_s, methods[number]) for number, offset_s in enumerate(times)]
