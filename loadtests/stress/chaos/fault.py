"""What a fault is, where it is injected, and what all other callers are still owed; the result of one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.stress.callers import TIMEOUT_S, Bystanders, Client, Question, Reply
from loadtests.stress.chaos.server import ChaosServer
from loadtests.stress.verdict import Promise, Summary, at_most, require

MODES: Final = ("short", "full")
"""A little of every fault, or all of it; the order of `Fault.amounts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What must hold for callers who are not hit, and of the server afterwards; each follows from its fault."""

    max_bystander_s: float = 2.0
    """Longest translation of a bystander. It takes some 50 ms alone; this is for a machine that the fault itself, or
    the client that makes it, keeps busy."""

    max_check_s: float = 1.0
    max_recovery_s: float = 5.0
    """From the end of the fault to a right answer on a new connection."""

    max_rss_growth_mb: float = 64.0
    max_thread_growth: int = 16
    max_file_growth: int = 8


@dataclass(slots=True, kw_only=True)
class Stage:
    """Where a fault is injected; it notes whom it hit and which promises it saw broken."""

    server: ChaosServer
    amount: int
    seconds: float
    bystanders: Bystanders
    questions: Sequence[Question]
    before: Mapping[str, float]
    hits: Counter[str] = field(default_factory=Counter)
    """Of callers who were meant to be hit: what they were told, and how many of them."""

    broken: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return self.server.process.target

    def require(self, holds: bool, sentence: str) -> None:
        """Note a promise as broken unless it holds."""
        if not holds:
            self.broken.append(sentence)

    def samples(self, name: str) -> float:
        """Return the sum of the series of a metric whose names with labels begin like this."""
        return _total(self.server.process.samples(), name)

    def growth(self, name: str) -> int:
        """Return by how much that sum has grown since the fault began."""
        return round(self.samples(name) - _total(self.before, name))

    def ask(self, number: int = 0, *, client: Client | None = None, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask one of the questions, on a connection of its own unless there is a client; return the judged reply."""
        question = self.questions[number % len(self.questions)]
        with nullcontext(client) if client else Client(self.target) as asking:
            return question.ask(asking, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong."""

    name: str
    summary: str
    run: Callable[[Stage], str]
    """Injects it and undoes it; returns where metrics show it (`mt_segments_total{error}+3`), empty if nowhere."""

    amounts: tuple[int, int] = (0, 0)
    """How much of it: calls, connections, runs or whatever it counts, in each of `MODES`."""

    seconds: tuple[float, float] = (0.0, 0.0)
    """How long it lasts, in each of `MODES`; of faults whose duration is chosen."""

    limits: Callable[[float], Limits] = lambda _: Limits()
    is_counted: bool = True
    """Whether metrics must show it; not what gRPC rejects before it calls anything of the service."""

    statuses_in_batch: frozenset[str] = frozenset()
    """What bystanders may be told who are decoded in the same batch; of those, `run` must account for each."""

    environment: Callable[[Path], Mapping[str, str]] | None = None
    """What the server must be started with, given its output directory; the fault then gets a server of its own."""


def _total(samples: Mapping[str, float], name: str) -> float:
    return sum(value for series, value in samples.items() if series.startswith(name))


def fault(summary: str, **fields: Any) -> Callable[[Callable[[Stage], str]], Fault]:
    """Return a decorator that makes a fault of the function that injects it; the function's name names it."""

    def declare(run: Callable[[Stage], str]) -> Fault:
        return Fault(name=run.__name__.replace("_", "-"), summary=summary, run=run, **fields)

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything noted of one fault."""

    fault: Fault
    limits: Limits = Limits()
    hits: Mapping[str, int]
    seen: str
    """Where metrics show the fault; empty: nowhere."""

    broken: Sequence[str] = ()
    translations: Sequence[Reply]
    checks: Sequence[Reply]
    recovered_s: float | None
    """From the end of the fault to a right answer on a new connection; None: never."""

    left: Mapping[str, float] = field(default_factory=dict)
    rss_growth_mb: float = 0.0
    thread_growth: int = 0
    file_growth: int = 0
    began_s: float
    elapsed_s: float

    @property
    def errors(self) -> list[Reply]:
        """What bystanders were told that only callers who are hit should be told."""
        excused = {"OK", *self.fault.statuses_in_batch}
        failed = [reply for reply in self.translations if reply.status not in excused]
        return failed + [reply for reply in self.checks if reply.status != "OK"]

    @property
    def summary(self) -> Summary:
        """Figures and promises of this fault."""
        limits = self.limits
        hits = "+".join(f"{status}:{count}" for status, count in sorted(self.hits.items())) or "nobody"
        slowest_s, check_s = (
            max((reply.latency_s for reply in replies), default=0.0) for replies in (self.translations, self.checks)
        )
        recovered_s = float("inf") if self.recovered_s is None else self.recovered_s
        return Summary(
            scenario="chaos",
            figures={
                "fault": self.fault.name,
                "hit": hits,
                "bystanders": len(self.translations) + len(self.checks),
                "bystander_errors": len(self.errors),
                "slowest_s": f"{slowest_s:.2f}",
                "health_s": f"{check_s:.2f}",
                "recovered_s": "never" if self.recovered_s is None else f"{recovered_s:.2f}",
                "rss_growth_mb": f"{self.rss_growth_mb:.1f}",
                "threads": f"{self.thread_growth:+d}",
                "files": f"{self.file_growth:+d}",
                "seen": self.seen or "-",
            },
            promises=[
                Promise(name=self.fault.name, broken=self.broken),
                Promise(name="bystanders are answered", broken=[f"{one.status}: {one.message}" for one in self.errors]),
                require("bystanders called", bool(self.translations and self.checks), "nothing is known of them"),
                at_most("slowest translation of a bystander", slowest_s, limits.max_bystander_s, unit="s"),
                at_most("slowest health check", check_s, limits.max_check_s, unit="s"),
                require("metrics show the fault", bool(self.seen) or not self.fault.is_counted, "none does"),
                at_most("recovery", recovered_s, limits.max_recovery_s, unit="s"),
                require("no work is left", not self.left, f"{dict(self.left)}"),
                at_most("growth of memory", self.rss_growth_mb, limits.max_rss_growth_mb, unit="MB"),
                at_most("more threads", self.thread_growth, limits.max_thread_growth),
                at_most("more open files", self.file_growth, limits.max_file_growth),
            ],
        )

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values; latencies are rounded to a tenth of a millisecond."""
        pairs = [(round(one.began_s - self.began_s, 4), round(one.latency_s, 4)) for one in self.translations]
        return {
            **self.summary.as_json(),
            "bystander_statuses": dict(Counter(reply.status for reply in self.errors)),
            "began_s": self.began_s,
            "elapsed_s": self.elapsed_s,
            "translations": pairs,
        }
