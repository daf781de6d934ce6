"""What a fault is, where it is injected, and what all other callers are still owed; what came of one."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.scenarios.callers import TIMEOUT_S, Bystanders, Client, Question, Reply
from loadtests.hostile.http2 import RawConnection
from loadtests.scenarios.chaos.server import ChaosServer
from loadtests.report.checks import Promise, Summary, at_most, require

LIMITS: Final[Mapping[str, float]] = {
    "slowest_s": 2.0,  # translation of a bystander; some 50 ms alone, but the fault or its client keep the machine busy
    "health_s": 1.0,  # of a health check
    "recovered_s": 5.0,  # from the end of the fault to a right answer on a new connection
    "rss_growth_mb": 64.0,
    "threads": 16,  # more of them, as of files
    "files": 8,
}
"""What must hold for callers who are not hit, and of the server afterwards, unless a fault explains more."""

LATE: Final = frozenset({"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})  # the latter: what waits would make them late
OPEN_FILES: Final = "process_open_fds"


def requests(method: str, status: str) -> str:
    """Return the name of the metric that counts the requests that end so."""
    return f'mt_requests_total{{method="{method}",status="{status}"}}'


def lasting(seconds: float) -> Iterator[int]:
    """Count from 0 until so much time has passed."""
    until_s = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong, and what must be seen of it; pairs are of the short and the full mode."""

    name: str  # of the function that injects it
    summary: str  # the first line of its docstring
    inject: Callable[["Stage"], None]  # makes it and undoes it
    amounts: tuple[int, int] = (0, 0)  # how much of it: calls, connections, runs or whatever it counts
    seconds: tuple[float, float] = (0.0, 0.0)  # how long it lasts, if that is chosen
    told: Set[str] = frozenset()  # what callers who are hit may be told, and some must be hit; empty: anything
    hits_batch: bool = False  # those are hit, too, who are decoded in the same batch; metrics count as many as are told
    metric: str = ""  # begins the names of series that must grow; empty: gRPC rejects it before it calls the service
    limits: Mapping[str, float] = field(default_factory=dict)  # in place of those of `LIMITS`
    delays: Set[str] = frozenset()  # limits to which the duration is added, as callers must wait for the fault to end
    needs: str = ""  # a command without which it is left out
    environment: Callable[[Path], Mapping[str, str]] | None = None  # of a server of its own, by its output directory


def fault(**fields: Any) -> Callable[[Callable[["Stage"], None]], Fault]:
    """Return a decorator that makes a fault of the function that injects it, with its name and docstring."""

    def declare(inject: Callable[[Stage], None]) -> Fault:
        summary = str(inject.__doc__).partition("\n")[0].rstrip(".")
        return Fault(name=inject.__name__.replace("_", "-"), summary=summary, inject=inject, **fields)

    return declare


@dataclass(slots=True, kw_only=True)
class Result:
    """Everything noted of one fault."""

    fault: Fault
    seconds: float = 0.0
    hits: Counter[str] = field(default_factory=Counter)  # what callers who were meant to be hit were told, how often
    num_seen: int = 0  # by how much the metric has grown, at most
    broken: list[str] = field(default_factory=list)  # sentences of promises that were seen broken
    translations: Sequence[Reply] = ()  # of bystanders, as are `checks` of the health
    checks: Sequence[Reply] = ()
    measured: dict[str, float] = field(default_factory=dict)  # what `LIMITS` limits, as far as it is known
    left: Mapping[str, float] = field(default_factory=dict)  # gauges of work that are not 0 in the end
    began_s: float
    elapsed_s: float = 0.0

    @property
    def limits(self) -> dict[str, float]:
        """What must hold of this fault."""
        limits = {**LIMITS, **self.fault.limits}
        return {name: limit + self.seconds * (name in self.fault.delays) for name, limit in limits.items()}

    @property
    def errors(self) -> list[Reply]:
        """What bystanders were told that only callers who are hit should be told."""
        excused = {"OK", *(self.fault.told if self.fault.hits_batch else ())}
        failed = [reply for reply in self.translations if reply.status not in excused]
        return failed + [reply for reply in self.checks if reply.status != "OK"]

    @property
    def summary(self) -> Summary:
        """Figures and promises of this fault."""
        told, metric, measured = self.fault.told, self.fault.metric, dict(self.measured)
        for name, replies in (("slowest_s", self.translations), ("health_s", self.checks)):
            measured |= {name: max(reply.latency_s for reply in replies)} if replies else {}
        is_told = not told or (self.hits.total() > 0 and self.hits.keys() <= told)
        return Summary(
            scenario="chaos",
            figures={
                "fault": self.fault.name,
                "hit": "+".join(f"{status}:{count}" for status, count in sorted((+self.hits).items())) or "nobody",
                "bystanders": len(self.translations) + len(self.checks),
                "bystander_errors": len(self.errors),
                **{name: round(measured[name], 2) if name in measured else "never" for name in LIMITS},
                "seen": f"{metric}{self.num_seen:+d}" if metric else "-",
            },
            promises=[
                Promise(name=self.fault.name, broken=self.broken),
                require("callers who are hit are told", is_told, f"they were told {dict(self.hits)}"),
                Promise(name="bystanders are answered", broken=[f"{one.status}: {one.message}" for one in self.errors]),
                require("metrics show the fault", not metric or self.num_seen > 0, f"{metric} has not grown"),
                require("no work is left", not self.left, f"{dict(self.left)}"),
                *(
                    at_most(name, measured[name], limit) if name in measured else require(name, False, "never seen")
                    for name, limit in self.limits.items()
                ),
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


class Stage(Result):
    """Where a fault is injected: a result in the making."""

    def __init__(self, fault: Fault, server: ChaosServer, questions: Sequence[Question], mode: str) -> None:
        """Look at the server and begin."""
        super().__init__(fault=fault, seconds=fault.seconds[mode == "full"], began_s=time.monotonic())
        self.amount = fault.amounts[mode == "full"]
        self.server, self.questions, self.target = server, questions, server.process.target
        self.bystanders = Bystanders(self.target, questions)
        self.connections = ExitStack()
        self._log_begin = server.log.stat().st_size
        self._before = server.process.samples()

    def connect(self, target: str = "", *, window_bytes: int | None = None) -> RawConnection:
        """Return a connection that is closed when the fault is over; to the port of gRPC unless told otherwise."""
        return self.connections.enter_context(closing(RawConnection(target or self.target, window_bytes=window_bytes)))

    def growth_of(self, name: str, *, less: str | None = None) -> int:
        """Return by how much the series whose names with labels begin like this have grown since the fault began.

        What those that begin like `less` have grown is taken off, as of the same moment: bystanders move both.
        """
        now = self.server.process.samples()

        def growth(begin: str) -> float:
            return sum(now[series] - self._before.get(series, 0.0) for series in now if series.startswith(begin))

        return round(growth(name) - (growth(less) if less else 0.0))

    def look(self) -> None:
        """Note by how much the fault's metric has grown; needed only of one that shrinks when the fault is over."""
        if self.fault.metric:
            self.num_seen = max(self.num_seen, self.growth_of(self.fault.metric))

    def require(self, holds: bool, sentence: str) -> None:
        """Note a promise as broken unless it holds."""
        if not holds:
            self.broken.append(sentence)

    def require_ok(self, when: str, replies: Iterable[Reply]) -> None:
        """Require that callers got right answers; `when` says what they did, or what was done to the server."""
        told = {f"{reply.status} {reply.message}" for reply in replies if reply.status != "OK"}
        self.require(not told, f"{when}: callers were told {', '.join(told)}")

    def require_late(self, when: str, replies: Sequence[Reply], deadline_s: float, *, slack_s: float = 0.5) -> None:
        """Note callers whose deadline could not be kept; require that they were told when it passed."""
        self.hits.update(reply.status for reply in replies)
        late_s = max(reply.latency_s for reply in replies) - deadline_s
        self.require(late_s < slack_s, f"{when}: a caller was told {late_s:.2f} s after its deadline that it passed")

    def ask(self, number: int = 0, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask one of the questions, on a connection of its own; return the judged reply."""
        with Client(self.target) as client:
            return self.questions[number % len(self.questions)].ask(client, timeout_s=timeout_s)

    def logged(self) -> str:
        """Return what the server has logged since the fault began."""
        return self.server.log.read_bytes()[self._log_begin :].decode(errors="replace")
