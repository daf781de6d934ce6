"""What was seen of attacks, and what must hold under them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from loadtests.scenarios.bad_inputs.attacks.attack import Attack
from loadtests.scenarios.bad_inputs.attacks.send import NOTHING_SENT, Sent
from loadtests.scenarios.bad_inputs.attacks.watch import NOTHING_SEEN, Seen

DRAIN_TIMEOUT_S: Final = 5.0
"""The setting `grpc.drain_timeout_s` of the server under attack."""

MAX_END_S: Final = DRAIN_TIMEOUT_S + 5.0
"""Longest time from SIGTERM to the end of the process."""

MAX_STALL_MS: Final = 50.0
MAX_P99_MS: Final = 100.0
MAX_GROWTH: Final = 3.0
"""Of the work for twice the input: halfway between work that grows as the input does and as its square."""

_MIN_GROWTH_CPU_S: Final = 0.05  # below it the growth is not judged
_STALL_RATIO: Final = 10.0
_STALL_FLOOR_MS: Final = 800.0
_P99_RATIO: Final = 5.0
_P99_FLOOR_MS: Final = 400.0


class Work(NamedTuple):
    """Processor time of the server for one input, without that of its decoding process."""

    size: int
    cpu_s: float


def _factor(small: Work, large: Work) -> float:
    """Return the factor of the processor time for each doubling of the size."""
    return float((large.cpu_s / small.cpu_s) ** (1 / math.log2(large.size / small.size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was seen of one attack."""

    attack: Attack
    seen: Seen = NOTHING_SEEN
    sent: Sent = NOTHING_SENT
    works: Sequence[Work] = ()  # of growing sizes
    end_s: float | None = None  # from SIGTERM to the end of the process; None: it was not sent
    faults: Sequence[str] = ()

    @property
    def growth(self) -> float | None:
        """Factor of the processor time for twice the input; None if the largest input takes too little time to judge.

        The largest size is compared with each of the two before it, and the smaller factor counts: on a busy machine,
        one of the measurements may be much too long or too short.
        """
        if not self.works or self.works[-1].cpu_s < _MIN_GROWTH_CPU_S:
            return None
        whole = self.works[-1]
        smaller = [each for each in self.works[-3:-1] if each.cpu_s]
        return min((_factor(each, whole) for each in smaller), default=None)

    def with_faults(self, *faults: str) -> "Result":
        """Return this result with more faults."""
        return replace(self, faults=[*self.faults, *faults])

    def with_end(self, end_s: float) -> "Result":
        """Return this result with the time from SIGTERM to the end of the process."""
        return replace(self, end_s=end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What `/healthz` may take under attack, in milliseconds."""

    stall_ms: float
    p99_ms: float


@dataclass(slots=True, kw_only=True)
class Campaign:
    """All attacks of a run."""

    quiet: Seen
    limits: Limits
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # attacks for which there was no time
    server_faults: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0


def limits_of(quiet: Seen, *, is_short: bool) -> Limits:
    """Return the absolute limits; for the short mode, which runs on busy machines too, those of a quiet baseline."""
    if not is_short:
        return Limits(stall_ms=MAX_STALL_MS + quiet.stall_ms, p99_ms=MAX_P99_MS)
    return Limits(
        stall_ms=max(_STALL_FLOOR_MS, _STALL_RATIO * quiet.stall_ms),
        p99_ms=max(_P99_FLOOR_MS, _P99_RATIO * quiet.p99_ms),
    )


def broken(result: Result, limits: Limits) -> Mapping[str, str]:
    """Return what did not hold of an attack: a sentence by the name of each broken promise."""
    seen, found = result.seen, dict[str, str]()
    if seen.stall_ms > limits.stall_ms:
        found["stall"] = f"{seen.stall_ms:.0f} ms, more than {limits.stall_ms:.0f}"
    if seen.p99_ms > limits.p99_ms:
        found["p99"] = f"{seen.p99_ms:.0f} ms, more than {limits.p99_ms:.0f}"
    if any(seen.lost.values()):
        found["lost"] = "; ".join(seen.errors)
    if result.growth and result.growth > MAX_GROWTH:
        half, whole = result.works[-2:]
        found["growth"] = f"{half.cpu_s:.2f} s for a size of {half.size}, {whole.cpu_s:.2f} s for {whole.size}"
    if result.end_s is not None and result.end_s > MAX_END_S:
        found["end"] = f"{result.end_s:.1f} s, more than {MAX_END_S:g}"
    if result.faults:
        found["faults"] = "; ".join(result.faults)
    return found
