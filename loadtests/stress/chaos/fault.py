"""What a fault is, where it is injected, and what everybody else is still owed; the result of one, and its promises."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.stress.callers import TIMEOUT_S, Bystanders, Client, Question, Reply
from loadtests.stress.chaos.server import ChaosServer, Injector
from loadtests.stress.verdict import Promise, Summary, at_most, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of each fault is injected; counts and seconds, all of them bounds: every fault ends by itself."""

    num_failing_runs: int
    """Runs of the network that fail, in each of two ways and two places."""

    hang_s: float
    num_logged_calls: int
    """Calls whose log lines cannot be written; a line has some 400 bytes."""

    stop_s: float = 5.0
    """For which all processes are stopped."""

    clock_jump_s: float = 3600.0
    num_readers: int
    """Callers who never read their streams."""

    reading_timeout_s: float
    """Their deadline."""

    num_connections: int
    """Opened and dropped."""

    num_slow: int
    """Connections at a time that send a byte now and then."""

    slow_s: float
    num_metadata: int
    """Calls with more metadata than the server accepts."""

    num_large: int
    num_pings: int
    num_resets: int
    """Calls that are cancelled as soon as they are sent."""

    num_garbage: int
    """Connections that send what is no gRPC."""


SCALES: Final = {
    "short": Scale(
        num_failing_runs=2, hang_s=2.0, num_logged_calls=50, num_readers=6, reading_timeout_s=2.0,
        num_connections=800, num_slow=100, slow_s=3.0, num_metadata=20, num_large=4, num_pings=2000, num_resets=800,
        num_garbage=160,
    ),
    "full": Scale(
        num_failing_runs=10, hang_s=8.0, num_logged_calls=2000, num_readers=32, reading_timeout_s=10.0,
        num_connections=10_000, num_slow=400, slow_s=20.0, num_metadata=200, num_large=40, num_pings=20_000,
        num_resets=10_000, num_garbage=1300,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What must hold for callers who are not hit, and of the server afterwards; each follows from its fault."""

    max_bystander_s: float = 2.0
    """Longest translation of a bystander. It takes some 50 ms alone; this is for a machine that the fault itself, or
    the client that makes it, keeps busy."""

    max_check_s: float = 1.0
    """Longest wait for the server's health."""

    max_recovery_s: float = 5.0
    """From the end of the fault to a right answer on a new connection."""

    max_rss_growth_mb: float = 64.0
    max_thread_growth: int = 16
    max_file_growth: int = 8


@dataclass(slots=True)
class Stage:
    """Where a fault is injected; it notes whom it hit and which promises it saw broken."""

    server: ChaosServer
    scale: Scale
    bystanders: Bystanders
    questions: Sequence[Question]
    hits: Counter[str] = field(default_factory=Counter)
    """Of callers who were meant to be hit: what they were told, and how many of them."""

    broken: list[str] = field(default_factory=list)
    """A sentence for each promise that did not hold."""

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return self.server.process.target

    @property
    def injector(self) -> Injector:
        """What injects faults inside the server."""
        return self.server.injector

    def require(self, holds: bool, sentence: str) -> None:
        """Note a promise as broken unless it holds."""
        if not holds:
            self.broken.append(sentence)

    def samples(self, name: str) -> float:
        """Return the sum of the series of a metric whose names with labels begin like this."""
        return sum(value for series, value in self.server.process.samples().items() if series.startswith(name))

    def ask(self, number: int = 0, *, client: Client | None = None, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask one of the questions, on a connection of its own unless there is a client; return the judged reply."""
        question = self.questions[number % len(self.questions)]
        if client is not None:
            return question.judge(client.translate(question.request, timeout_s=timeout_s))
        with Client(self.target) as own:
            return question.judge(own.translate(question.request, timeout_s=timeout_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong."""

    name: str
    summary: str
    run: Callable[[Stage], str]
    """Injects it and undoes it; returns where metrics show it (`mt_segments_total{error}+3`), empty if nowhere."""

    is_counted: bool = True
    """Whether metrics must show it; not what gRPC rejects before it calls anything of the service."""

    limits: Limits = Limits()
    statuses_in_batch: frozenset[str] = frozenset()
    """What bystanders may be told who are decoded in the same batch; of those, `run` must account for each."""

    environment: Callable[[], Mapping[str, str]] | None = None
    """What the server must be started with, if it is anything; it then gets a server of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything noted of one fault."""

    fault: Fault
    hits: Mapping[str, int]
    """What callers who were hit were told."""

    seen: str
    """Where metrics show the fault; empty: nowhere."""

    broken: Sequence[str] = ()
    """What the fault itself found broken."""

    translations: Sequence[Reply]
    """Of bystanders, like `checks`."""

    checks: Sequence[Reply]
    recovered_s: float | None
    """From the end of the fault to a right answer on a new connection; None: never."""

    left: Mapping[str, float] = field(default_factory=dict)
    """Gauges of work that are not at rest."""

    rss_growth_mb: float = 0.0
    thread_growth: int = 0
    file_growth: int = 0
    began_s: float
    elapsed_s: float

    @property
    def errors(self) -> list[Reply]:
        """What bystanders were told that only callers who are hit should be told."""
        excused = {"OK", *self.fault.statuses_in_batch}
        return [reply for reply in self.translations if reply.status not in excused] + [
            reply for reply in self.checks if reply.status != "OK"
        ]

    @property
    def summary(self) -> Summary:
        """Figures and promises of this fault."""
        hits = "+".join(f"{status}:{count}" for status, count in sorted(self.hits.items())) or "nobody"
        figures: dict[str, str | int] = {
            "fault": self.fault.name,
            "hit": hits,
            "bystanders": len(self.translations) + len(self.checks),
            "bystander_errors": len(self.errors),
            "slowest_s": f"{_slowest_s(self.translations):.2f}",
            "health_s": f"{_slowest_s(self.checks):.2f}",
            "recovered_s": "never" if self.recovered_s is None else f"{self.recovered_s:.2f}",
            "rss_growth_mb": f"{self.rss_growth_mb:.1f}",
            "threads": f"{self.thread_growth:+d}",
            "files": f"{self.file_growth:+d}",
            "seen": self.seen or "-",
        }
        return Summary(scenario="chaos", figures=figures, promises=self._promises())

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values; latencies are rounded to a tenth of a millisecond."""
        return {
            "fault": self.fault.name,
            **self.summary.as_json(),
            "bystander_errors": dict(Counter(reply.status for reply in self.errors)),
            "began_s": self.began_s,
            "elapsed_s": self.elapsed_s,
            "translations": [
                (round(reply.began_s - self.began_s, 4), round(reply.latency_s, 4)) for reply in self.translations
            ],
        }

    def _promises(self) -> list[Promise]:
        limits = self.fault.limits
        never = float("inf")
        return [
            Promise(name=self.fault.name, broken=self.broken),
            Promise(name="bystanders are answered", broken=[f"{one.status}: {one.message}" for one in self.errors]),
            require("bystanders called", bool(self.translations and self.checks), "nothing is known of them"),
            at_most(
                "slowest translation of a bystander", _slowest_s(self.translations), limits.max_bystander_s, unit="s"
            ),
            at_most("slowest health check", _slowest_s(self.checks), limits.max_check_s, unit="s"),
            require("metrics show the fault", bool(self.seen) or not self.fault.is_counted, "none does"),
            at_most(
                "recovery", never if self.recovered_s is None else self.recovered_s, limits.max_recovery_s, unit="s"
            ),
            require("no work is left", not self.left, f"{dict(self.left)}"),
            at_most("growth of memory", self.rss_growth_mb, limits.max_rss_growth_mb, unit="MB"),
            at_most("more threads", self.thread_growth, limits.max_thread_growth),
            at_most("more open files", self.file_growth, limits.max_file_growth),
        ]


def _slowest_s(replies: Sequence[Reply]) -> float:
    return max((reply.latency_s for reply in replies), default=0.0)
