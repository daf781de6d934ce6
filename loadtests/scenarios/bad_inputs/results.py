"""Results of attacks: limits, checks and table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from loadtests.hostile.attacks import Attack
from loadtests.report.report import Check, Report, markdown, require, rounded
from loadtests.scenarios.bad_inputs.monitor import NO_SAMPLE, Sample

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
_HEADER: Final = (
    *("attack", "surface", "stall ms", "p99 ms", "memory MB", "lost"),
    *("exchanges", "cpu ms", "growth", "end s", ""),
)
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
    sample: Sample = NO_SAMPLE
    statuses: Mapping[str, int] = field(default_factory=dict)  # number of exchanges
    works: Sequence[Work] = ()  # of growing sizes
    end_s: float | None = None  # from SIGTERM to the end of the process; None: not sent
    faults: Sequence[str] = ()

    @property
    def growth(self) -> float | None:
        """Factor of the CPU time for twice the input; None if all inputs take too little time.

        The size that takes most time is compared with the two before it, because larger ones may be rejected early. The
        smaller factor counts, because a single measurement may be far off on a busy machine.
        """
        if not self.works:
            return None
        number = max(range(len(self.works)), key=lambda index: self.works[index].cpu_s)
        large = self.works[number]
        if large.cpu_s < _MIN_GROWTH_CPU_S:
            return None
        smaller = [work for work in self.works[max(0, number - 2) : number] if work.cpu_s]
        factors = [(large.cpu_s / work.cpu_s) ** (1 / math.log2(large.size / work.size)) for work in smaller]
        return min(factors, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of `/healthz` under attack."""

    stall_ms: float
    p99_ms: float


@dataclass(slots=True, kw_only=True)
class Campaign:
    """All attacks of a run."""

    baseline: Sample = NO_SAMPLE  # of the server without attacks
    limits: Limits = Limits(stall_ms=MAX_STALL_MS, p99_ms=MAX_P99_MS)
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # for lack of time
    server_faults: list[str] = field(default_factory=list)  # errors in the logs
    exit_codes: Sequence[int | None] = ()
    elapsed_s: float = 0.0


def limits_of(baseline: Sample, *, is_short: bool) -> Limits:
    """Return the limits; those of the short mode, for busy machines, are relative to the server without attacks."""
    if not is_short:
        return Limits(stall_ms=MAX_STALL_MS + baseline.stall_ms, p99_ms=MAX_P99_MS)
    return Limits(
        stall_ms=max(_STALL_FLOOR_MS, _STALL_RATIO * baseline.stall_ms),
        p99_ms=max(_P99_FLOOR_MS, _P99_RATIO * baseline.p99_ms),
    )


def failures_of(result: Result, limits: Limits) -> Mapping[str, str]:
    """Return a sentence for each failed check of an attack, by its name."""
    sample, found = result.sample, dict[str, str]()
    if sample.stall_ms > limits.stall_ms:
        found["stall"] = f"{sample.stall_ms:.0f} ms exceeds {limits.stall_ms:.0f}"
    if sample.p99_ms > limits.p99_ms:
        found["p99"] = f"{sample.p99_ms:.0f} ms exceeds {limits.p99_ms:.0f}"
    if any(sample.lost.values()):
        found["lost"] = "; ".join(sample.errors)
    if result.growth and result.growth > MAX_GROWTH:
        found["growth"] = ", ".join(f"{work.cpu_s:.2f} s for a size of {work.size}" for work in result.works)
    if result.end_s is not None and result.end_s > MAX_END_S:
        found["end"] = f"{result.end_s:.1f} s exceeds {MAX_END_S:g}"
    if result.faults:
        found["faults"] = "; ".join(result.faults)
    return found


def report_of(campaign: Campaign) -> Report:
    """Return table, figures and checks."""
    samples = [result.sample for result in campaign.results]
    by_name: dict[str, list[str]] = {name: [] for name in _CHECKS}
    for result in campaign.results:
        for name, sentence in failures_of(result, campaign.limits).items():
            by_name[name].append(f"{result.attack.name}: {sentence}")
    return Report(
        name="attacks",
        figures={
            "attacks": len(campaign.results),
            "attacks_held": sum(not failures_of(result, campaign.limits) for result in campaign.results),
            "worst_stall_ms": rounded(max((sample.stall_ms for sample in samples), default=None), 0),
            "worst_health_p99_ms": rounded(max((sample.p99_ms for sample in samples), default=None), 0),
            "peak_memory_mb": rounded(max((sample.peak_memory_mb for sample in samples), default=None), 0),
            "baseline_memory_mb": rounded(campaign.baseline.peak_memory_mb, 0),
            "baseline_stall_ms": rounded(campaign.baseline.stall_ms, 0),
            "baseline_p99_ms": rounded(campaign.baseline.p99_ms),
            "calls_lost": sum(sum(sample.lost.values()) for sample in {id(one): one for one in samples}.values()),
            "lag_p99_ms": rounded(max((sample.lag_p99_ms for sample in samples), default=None)),
            "attacks_s": rounded(campaign.elapsed_s, 0),
        },
        checks=[
            *(Check(name=_CHECKS[name], failures=sentences) for name, sentences in by_name.items()),
            require("servers exit with 0", set(campaign.exit_codes) <= {0}, f"exit codes {list(campaign.exit_codes)}"),
            Check(name="servers under attack log no error", failures=campaign.server_faults),
            Check(name="no attack is skipped for lack of time", failures=campaign.skipped),
        ],
        values={
            "limits": asdict(campaign.limits),
            "baseline": _figures(campaign.baseline),
            "attacks": [_details(result, campaign.limits) for result in campaign.results],
        },
        table=_table(campaign),
    )


def _table(campaign: Campaign) -> str:
    def row(result: Result | None, sample: Sample) -> list[str]:
        seen = [sample.stall_ms, sample.p99_ms, sample.peak_memory_mb, sum(sample.lost.values())]
        measured = [f"{value:.0f}" for value in seen]
        if result is None:
            return ["(baseline)", "", *measured, *["-"] * 4, ""]
        cpu_ms = 1000 * result.works[-1].cpu_s if result.works else None
        num_exchanges = str(sum(result.statuses.values()))
        figures = [num_exchanges, rounded(cpu_ms, 0), rounded(result.growth), rounded(result.end_s)]
        failed = ", ".join(failures_of(result, campaign.limits))
        return [result.attack.name, result.attack.surface, *measured, *figures, failed]

    return markdown(
        _HEADER, [row(None, campaign.baseline), *(row(result, result.sample) for result in campaign.results)]
    )


def _details(result: Result, limits: Limits) -> dict[str, Any]:
    attack = result.attack
    return {
        **{name: getattr(attack, name) for name in ("name", "surface", "size")},
        **_figures(result.sample),
        "statuses": dict(result.statuses),
        "works": [work._asdict() for work in result.works],
        "growth": result.growth,
        "end_s": result.end_s,
        "broken": dict(failures_of(result, limits)),
    }


def _figures(sample: Sample) -> dict[str, Any]:
    return {
        name: getattr(sample, name) for name in ("stall_ms", "p99_ms", "lag_p99_ms", "peak_memory_mb", "lost", "errors")
    }
