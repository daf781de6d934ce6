"""What a trial came to and which promises it broke: pure functions of what was noted."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests.chaos.calls import Reply
from loadtests.chaos.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Everything noted of one fault."""

    fault: str
    limits: Limits
    hits: Mapping[str, int]
    """What those who were hit were told."""

    seen: str
    """Where metrics show the fault; empty: nowhere."""

    is_counted: bool = True
    """Whether they must."""

    broken: Sequence[str] = ()
    """What the fault itself found broken."""

    translations: Sequence[Reply]
    """Of bystanders, like `checks`."""

    checks: Sequence[Reply]
    statuses_in_batch: frozenset[str] = frozenset()
    """What bystanders may be told who were in the batch that was hit."""

    recovered_s: float | None
    """From the end of the fault to a right answer on a new connection; None: never."""

    left: Mapping[str, float] = field(default_factory=dict)
    """Gauges of work that are not at rest."""

    rss_growth_mb: float
    thread_growth: int
    file_growth: int
    began_s: float
    elapsed_s: float

    @property
    def errors(self) -> list[Reply]:
        """What bystanders were told that nobody should be who was not hit."""
        excused = {"OK", *self.statuses_in_batch}
        return [reply for reply in self.translations if reply.status not in excused] + [
            reply for reply in self.checks if reply.status != "OK"
        ]

    @property
    def slowest_translation_s(self) -> float:
        """Longest wait of a bystander for a translation."""
        return max((reply.latency_s for reply in self.translations), default=0.0)

    @property
    def slowest_check_s(self) -> float:
        """Longest wait of a bystander for the server's health."""
        return max((reply.latency_s for reply in self.checks), default=0.0)


def broken_promises(result: TrialResult) -> list[str]:
    """Return a sentence for each promise that did not hold."""
    return [*result.broken, *_broken_to_callers(result), *_broken_afterwards(result)]


def line(result: TrialResult) -> str:
    """Return `chaos fault=... name=value ...`."""
    hits = "+".join(f"{status}:{count}" for status, count in sorted(result.hits.items())) or "nobody"
    fields = {
        "fault": result.fault,
        "status": "broken" if broken_promises(result) else "held",
        "hit": hits,
        "bystanders": len(result.translations) + len(result.checks),
        "bystander_errors": len(result.errors),
        "slowest_s": f"{result.slowest_translation_s:.2f}",
        "health_s": f"{result.slowest_check_s:.2f}",
        "recovered_s": "never" if result.recovered_s is None else f"{result.recovered_s:.2f}",
        "rss_growth_mb": f"{result.rss_growth_mb:.1f}",
        "threads": f"{result.thread_growth:+d}",
        "files": f"{result.file_growth:+d}",
        "seen": result.seen or "-",
    }
    return " ".join(["chaos", *(f"{name}={value}" for name, value in fields.items())])


def last_line(results: Sequence[TrialResult], *, exit_codes: Sequence[int]) -> str:
    """Return `chaos faults=... held=... verdict=...`; every server must have ended well, too."""
    held = sum(not broken_promises(result) for result in results)
    verdict = "held" if results and held == len(results) and not any(exit_codes) else "broken"
    return f"chaos faults={len(results)} held={held} verdict={verdict}"


def record(result: TrialResult) -> dict[str, Any]:
    """Return a trial as JSON-ready values; latencies are rounded to a tenth of a millisecond."""
    return {
        "fault": result.fault,
        "broken": broken_promises(result),
        "hits": dict(result.hits),
        "seen": result.seen,
        "bystander_errors": dict(Counter(reply.status for reply in result.errors)),
        "slowest_translation_s": result.slowest_translation_s,
        "slowest_check_s": result.slowest_check_s,
        "recovered_s": result.recovered_s,
        "rss_growth_mb": result.rss_growth_mb,
        "thread_growth": result.thread_growth,
        "file_growth": result.file_growth,
        "began_s": result.began_s,
        "elapsed_s": result.elapsed_s,
        "translations": [
            (round(reply.began_s - result.began_s, 4), round(reply.latency_s, 4)) for reply in result.translations
        ],
    }


def _broken_to_callers(result: TrialResult) -> Iterator[str]:
    limits = result.limits
    if result.errors:
        first = result.errors[0]
        yield f"{len(result.errors)} bystanders failed, the first with {first.status}: {first.message}"
    if not result.translations or not result.checks:
        yield "no bystander called: nothing is known"
    if result.slowest_translation_s > limits.max_bystander_s:
        yield f"a bystander waited {result.slowest_translation_s:.2f} s, more than {limits.max_bystander_s:g}"
    if result.slowest_check_s > limits.max_check_s:
        yield f"the health took {result.slowest_check_s:.2f} s to tell, more than {limits.max_check_s:g}"
    if result.is_counted and not result.seen:
        yield "no metric shows the fault"


def _broken_afterwards(result: TrialResult) -> Iterator[str]:
    limits = result.limits
    if result.recovered_s is None:
        yield "the server did not recover"
    elif result.recovered_s > limits.max_recovery_s:
        yield f"the server recovered after {result.recovered_s:.1f} s, more than {limits.max_recovery_s:g}"
    if result.left:
        yield f"work is left: {dict(result.left)}"
    if result.rss_growth_mb > limits.max_rss_growth_mb:
        yield f"the server grew by {result.rss_growth_mb:.1f} MB, more than {limits.max_rss_growth_mb:g}"
    if result.thread_growth > limits.max_thread_growth:
        yield f"{result.thread_growth} more threads, more than {limits.max_thread_growth}"
    if result.file_growth > limits.max_file_growth:
        yield f"{result.file_growth} more open files, more than {limits.max_file_growth}"
