"""Results of attacks: limits, checks and table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from loadtests.report.report import Check, Report, markdown, rounded
from loadtests.scenarios.bad_inputs.attacks.attack import Attack
from loadtests.scenarios.bad_inputs.attacks.send import NOTHING_SENT, Sent
from loadtests.scenarios.bad_inputs.attacks.watch import NOTHING_SEEN, Seen

DRAIN_TIMEOUT_S: Final = 5.0  # setting `grpc.drain_timeout_s` of the attacked server
MAX_END_S: Final = DRAIN_TIMEOUT_S + 5.0  # from SIGTERM to the end of the process
MAX_STALL_MS: Final = 50.0
MAX_P99_MS: Final = 100.0
MAX_GROWTH: Final = 3.0  # for twice the input: halfway between linear and quadratic

_MIN_GROWTH_CPU_S: Final = 0.05  # less work is not judged
_STALL_RATIO: Final = 10.0  # this and the next three: of the short mode
_STALL_FLOOR_MS: Final = 800.0
_P99_RATIO: Final = 5.0
_P99_FLOOR_MS: Final = 400.0
_HEADER: Final = ("attack", "surface", "stall ms", "p99 ms", "lost", "exchanges", "cpu ms", "growth", "end s", "")
_CHECKS: Final = {  # by the names of failures
    "stall": "no probe of /healthz stalls",
    "p99": "/healthz is answered in time at p99",
    "lost": "well-behaved clients lose no call",
    "growth": "work grows linearly with the size of an attack",
    "end": "SIGTERM ends the process in time",
    "faults": "attacks get the expected statuses, and the server is healthy afterwards",
}


class Work(NamedTuple):
    """CPU time of the server, without its workers, for one input."""

    size: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Observations of one attack."""

    attack: Attack
    seen: Seen = NOTHING_SEEN
    sent: Sent = NOTHING_SENT
    works: Sequence[Work] = ()  # of growing sizes
    end_s: float | None = None  # from SIGTERM to the end of the process; None: not sent
    faults: Sequence[str] = ()

    @property
    def growth(self) -> float | None:
        """Factor of the CPU time for twice the input; None if the largest input takes too little time.

        The largest size is compared with the two before it, and the smaller factor counts, because a single measurement
        may be far off on a busy machine.
        """
        if not self.works or self.works[-1].cpu_s < _MIN_GROWTH_CPU_S:
            return None
        large = self.works[-1]
        smaller = [one for one in self.works[-3:-1] if one.cpu_s]
        factors = [(large.cpu_s / one.cpu_s) ** (1 / math.log2(large.size / one.size)) for one in smaller]
        return min(factors, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of `/healthz` under attack."""

    stall_ms: float
    p99_ms: float


@dataclass(slots=True, kw_only=True)
class Campaign:
    """All attacks of a run."""

    quiet: Seen = NOTHING_SEEN
    limits: Limits = Limits(stall_ms=MAX_STALL_MS, p99_ms=MAX_P99_MS)
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # for lack of time
    server_faults: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0


def limits_of(quiet: Seen, *, is_short: bool) -> Limits:
    """Return the limits; those of the short mode, for busy machines, are relative to the quiet server."""
    if not is_short:
        return Limits(stall_ms=MAX_STALL_MS + quiet.stall_ms, p99_ms=MAX_P99_MS)
    return Limits(
        stall_ms=max(_STALL_FLOOR_MS, _STALL_RATIO * quiet.stall_ms),
        p99_ms=max(_P99_FLOOR_MS, _P99_RATIO * quiet.p99_ms),
    )


def failures_of(result: Result, limits: Limits) -> Mapping[str, str]:
    """Return a sentence for each failed check of an attack, by its name."""
    seen, found = result.seen, dict[str, str]()
    if seen.stall_ms > limits.stall_ms:
        found["stall"] = f"{seen.stall_ms:.0f} ms exceeds {limits.stall_ms:.0f}"
    if seen.p99_ms > limits.p99_ms:
        found["p99"] = f"{seen.p99_ms:.0f} ms exceeds {limits.p99_ms:.0f}"
    if any(seen.lost.values()):
        found["lost"] = "; ".join(seen.errors)
    if result.growth and result.growth > MAX_GROWTH:
        half, whole = result.works[-2:]
        found["growth"] = f"{half.cpu_s:.2f} s for a size of {half.size}, {whole.cpu_s:.2f} s for {whole.size}"
    if result.end_s is not None and result.end_s > MAX_END_S:
        found["end"] = f"{result.end_s:.1f} s exceeds {MAX_END_S:g}"
    if result.faults:
        found["faults"] = "; ".join(result.faults)
    return found


def report_of(campaign: Campaign) -> Report:
    """Return table, figures and checks."""
    seen = [result.seen for result in campaign.results]
    by_name: dict[str, list[str]] = {name: [] for name in _CHECKS}
    for result in campaign.results:
        for name, sentence in failures_of(result, campaign.limits).items():
            by_name[name].append(f"{result.attack.name}: {sentence}")
    return Report(
        name="attacks",
        figures={
            "attacks": len(campaign.results),
            "attacks_held": sum(not failures_of(result, campaign.limits) for result in campaign.results),
            "worst_stall_ms": rounded(max((one.stall_ms for one in seen), default=None), 0),
            "worst_health_p99_ms": rounded(max((one.p99_ms for one in seen), default=None), 0),
            "quiet_stall_ms": rounded(campaign.quiet.stall_ms, 0),
            "quiet_p99_ms": rounded(campaign.quiet.p99_ms),
            "calls_lost": sum(sum(one.lost.values()) for one in seen),
            "lag_p99_ms": rounded(max((one.lag_p99_ms for one in seen), default=None)),
            "attacks_s": rounded(campaign.elapsed_s, 0),
        },
        checks=[
            *(Check(name=_CHECKS[name], failures=sentences) for name, sentences in by_name.items()),
            Check(name="servers under attack log no error", failures=campaign.server_faults),
            Check(name="no attack is skipped for lack of time", failures=campaign.skipped),
        ],
        values={
            "limits": asdict(campaign.limits),
            "quiet": _figures(campaign.quiet),
            "attacks": [_details(result, campaign.limits) for result in campaign.results],
        },
        table=_table(campaign),
    )


def _table(campaign: Campaign) -> str:
    def row(result: Result | None, seen: Seen) -> list[str]:
        times = [f"{seen.stall_ms:.0f}", f"{seen.p99_ms:.0f}", str(sum(seen.lost.values()))]
        if result is None:
            return ["(quiet)", "", *times, *["-"] * 4, ""]
        cpu_ms = 1000 * result.works[-1].cpu_s if result.works else None
        num_exchanges = str(sum(result.sent.statuses.values()))
        figures = [num_exchanges, rounded(cpu_ms, 0), rounded(result.growth), rounded(result.end_s)]
        failed = ", ".join(failures_of(result, campaign.limits))
        return [result.attack.name, result.attack.surface, *times, *figures, failed]

    return markdown(_HEADER, [row(None, campaign.quiet), *(row(result, result.seen) for result in campaign.results)])


def _details(result: Result, limits: Limits) -> dict[str, Any]:
    attack = result.attack
    return {
        **{name: getattr(attack, name) for name in ("name", "surface", "size", "num_connections")},
        **_figures(result.seen),
        "statuses": dict(result.sent.statuses),
        "attack_s": result.sent.seconds,
        "works": [work._asdict() for work in result.works],
        "growth": result.growth,
        "end_s": result.end_s,
        "broken": dict(failures_of(result, limits)),
    }


def _figures(seen: Seen) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in ("stall_ms", "p99_ms", "lag_p99_ms", "lost", "errors")}
