"""Faults, the server that they are injected into, and their results."""

import itertools
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final, Literal

from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from loadtests.generator.calls import Reply
from loadtests.generator.client import TIMEOUT_S
from loadtests.generator.metrics import scrape
from loadtests.hostile.http2 import RawConnection
from loadtests.report.report import Check, Report, at_most, require
from loadtests.scenarios.control_traffic import Question, TranslatingTraffic, connect
from loadtests.scenarios.stress_server import log_path, poll, started

INSIDE: Final = Path(__file__).resolve().parent / "inside"
NUM_WORKERS: Final = 2  # one that hangs, and another
HANDSHAKE_TIMEOUT_S: Final = 2.0  # the default of 10 s would only take longer
_SETTINGS: Final = {
    "DRAGOMAN_SCHEDULING__NUM_WORKERS": str(NUM_WORKERS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_INJECTOR_TIMEOUT_S: Final = 10.0
_STDERR: Final = 2
Kind = Literal["raise", "cut-off", "hang"]
LIMITS: Final[Mapping[str, float]] = {  # for control traffic and the server afterwards; faults may override them
    "slowest_s": 2.0,  # translation; some 50 ms without a fault, but faults and their clients use the cores
    "health_s": 1.0,  # health check
    "recovered_s": 5.0,  # from the end of the fault to a right response on a new connection
    "rss_growth_mb": 64.0,
    "threads": 16,  # additional threads, as of files
    "files": 8,
}

LATE: Final = frozenset({"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})  # the latter if queued requests would be late
OPEN_FILES: Final = "process_open_fds"


@dataclass(frozen=True, slots=True)
class ChaosServer:
    """A ready server with an injector."""

    process: ServerProcess
    models: Path
    original_models: Path
    log: Path
    folder: Path  # of armed faults
    connection: "Connection[Any, Any]"

    def arm(self, kind: Kind, where: Literal["encoder", "step"], *, seconds: float = 0.0) -> None:
        """Let the next run raise after it has written its results, fail within ONNX Runtime, or start later."""
        (self.folder / f"{where} {time.monotonic_ns():020} {kind} {seconds}").touch()

    def wait_until_triggered(self) -> None:
        """Wait until every armed fault has met a run; raises ServerProcessError."""
        if not poll(lambda: not list(self.folder.glob("* *")), bool, timeout_s=_INJECTOR_TIMEOUT_S, each_s=0.02):
            raise ServerProcessError(f"an armed fault was not triggered within {_INJECTOR_TIMEOUT_S:g} s")

    def hang_steps(self, seconds: float, *, count: int = 1) -> None:
        """Hang a number of decoding steps; return when they do."""
        for _ in range(count):
            self.arm("hang", "step", seconds=seconds)
        self.wait_until_triggered()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function in the main process of the server; raises ServerProcessError."""
        try:
            self.connection.send((function, arguments))
            is_answered = self.connection.poll(_INJECTOR_TIMEOUT_S)
            answer = self.connection.recv() if is_answered else TimeoutError("no response")
        except (OSError, EOFError) as error:
            answer = error
        if isinstance(answer, Exception):
            raise ServerProcessError(f"the server cannot call {function.__name__}: {answer!r}") from answer
        return answer

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Redirect standard error of the server to a path."""
        before, there = self.call(os.dup, _STDERR), self.call(os.open, str(path), os.O_WRONLY)
        self.call(os.dup2, there, _STDERR)
        try:
            yield
        finally:
            self.call(os.dup2, before, _STDERR)
            for descriptor in (before, there):
                self.call(os.close, descriptor)


def copy_tree(original: Path, copy: Path) -> None:
    """Replace a directory by a copy of another one."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)


@contextmanager
def chaos_server(output: Path, *, models: Path, environment: Mapping[str, str]) -> Iterator[ChaosServer]:
    """Start a server with an injector on a copy of the models; raises ServerProcessError."""
    copy = output / "models"
    copy_tree(models, copy)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))  # socket paths are short
        python_path = os.pathsep.join(filter(None, [str(INSIDE), os.environ.get("PYTHONPATH", "")]))
        settings = {**_SETTINGS, "PYTHONPATH": python_path, "CHAOS_FOLDER": str(folder), **environment}
        process = stack.enter_context(started(output, models=copy, settings=settings))
        try:
            connection = stack.enter_context(Client(str(folder / "socket")))
        except OSError as error:
            raise ServerProcessError(f"no injector in the server, perhaps another sitecustomize: {error}") from error
        yield ChaosServer(process, copy, models, log_path(output), folder, connection)


def requests_metric(method: str, status: str) -> str:
    """Return the series that counts the requests to a method with a status."""
    return f'dragoman_requests_total{{method="{method}",status="{status}"}}'


def lasting(seconds: float) -> Iterator[int]:
    """Count from 0 until the time is over."""
    until_s = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its expected effects; pairs are for the short and the full mode."""

    name: str  # of the function that injects it
    summary: str  # first line of its docstring
    inject: Callable[["Stage"], None]  # injects and ends it
    amounts: tuple[int, int] = (0, 0)  # number of calls, connections or runs
    seconds: tuple[float, float] = (0.0, 0.0)  # duration, if it can be chosen
    expected: Set[str] = frozenset()  # statuses for affected callers, at least one; empty: any
    hits_batch: bool = False  # also affects requests of the same batch; metrics must count every caller with the status
    metric: str = ""  # prefix of series that must grow; empty: gRPC rejects it before it calls the service
    limits: Mapping[str, float] = field(default_factory=dict)  # instead of those in `LIMITS`
    delays: Set[str] = frozenset()  # limits extended by the duration, because callers must wait for the end
    needs: str = ""  # command without which it is skipped
    environment: Callable[[Path], Mapping[str, str]] | None = None  # of a server of its own, by output directory


def fault(**fields: Any) -> Callable[[Callable[["Stage"], None]], Fault]:
    """Return a decorator that makes a fault of a function, with its name and docstring."""

    def declare(inject: Callable[[Stage], None]) -> Fault:
        summary = str(inject.__doc__).partition("\n")[0].rstrip(".")
        return Fault(name=inject.__name__.replace("_", "-"), summary=summary, inject=inject, **fields)

    return declare


@dataclass(slots=True, kw_only=True)
class Result:
    """Observations of one fault."""

    fault: Fault
    seconds: float = 0.0
    hits: Counter[str] = field(default_factory=Counter)  # statuses of affected callers
    num_seen: int = 0  # growth of the metric
    broken: list[str] = field(default_factory=list)
    translations: Sequence[Reply] = ()  # of control traffic
    probes: Sequence[Reply] = ()  # health checks of control traffic
    measured: dict[str, float] = field(default_factory=dict)  # values for `LIMITS`
    left: Mapping[str, float] = field(default_factory=dict)  # remaining work
    began_s: float
    elapsed_s: float = 0.0

    @property
    def limits(self) -> dict[str, float]:
        """Limits of this fault."""
        limits = {**LIMITS, **self.fault.limits}
        return {name: limit + self.seconds * (name in self.fault.delays) for name, limit in limits.items()}

    @property
    def errors(self) -> list[Reply]:
        """Failed calls of control traffic."""
        allowed = {"OK", *(self.fault.expected if self.fault.hits_batch else ())}
        failed = [reply for reply in self.translations if reply.status not in allowed]
        return failed + [reply for reply in self.probes if reply.status != "OK"]

    @property
    def report(self) -> Report:
        """Figures and checks."""
        expected, metric, measured = self.fault.expected, self.fault.metric, dict(self.measured)
        for name, replies in (("slowest_s", self.translations), ("health_s", self.probes)):
            measured |= {name: max(reply.latency_s for reply in replies)} if replies else {}
        is_expected = not expected or (self.hits.total() > 0 and self.hits.keys() <= expected)
        errors = [f"{one.status}: {one.message}" for one in self.errors]
        return Report(
            name="chaos",
            figures={
                "fault": self.fault.name,
                "hit": "+".join(f"{status}:{count}" for status, count in sorted((+self.hits).items())) or "nobody",
                "bystanders": len(self.translations) + len(self.probes),
                "bystander_errors": len(self.errors),
                **{name: round(measured[name], 2) if name in measured else "never" for name in LIMITS},
                "seen": f"{metric}{self.num_seen:+d}" if metric else "-",
            },
            checks=[
                Check(name=self.fault.name, failures=self.broken),
                require("affected callers get the expected status", is_expected, f"statuses: {dict(self.hits)}"),
                Check(name="control traffic is answered", failures=errors),
                require("metrics show the fault", not metric or self.num_seen > 0, f"{metric} has not grown"),
                require("no work remains", not self.left, f"{dict(self.left)}"),
                *(
                    at_most(name, measured[name], limit) if name in measured else require(name, False, "never measured")
                    for name, limit in self.limits.items()
                ),
            ],
        )

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        pairs = [(round(one.began_s - self.began_s, 4), round(one.latency_s, 4)) for one in self.translations]
        return {
            **self.report.as_json(),
            "bystander_statuses": dict(Counter(reply.status for reply in self.errors)),
            "began_s": self.began_s,
            "elapsed_s": self.elapsed_s,
            "translations": pairs,
        }


class Stage(Result):
    """The server and the observations of a fault while it is injected."""

    def __init__(self, fault: Fault, server: ChaosServer, questions: Sequence[Question], mode: str) -> None:
        super().__init__(fault=fault, seconds=fault.seconds[mode == "full"], began_s=time.monotonic())
        self.amount = fault.amounts[mode == "full"]
        self.server, self.questions, self.address = server, questions, server.process.target
        self.control = TranslatingTraffic(self.address, questions)
        self.connections = ExitStack()
        self._log_begin = server.log.stat().st_size
        self._before = scrape(server.process.metrics_url)

    def connect(self, *, window_bytes: int | None = None) -> RawConnection:
        """Return a connection that is closed after the fault."""
        return self.connections.enter_context(closing(RawConnection(self.address, window_bytes=window_bytes)))

    def growth_of(self, name: str, *, less: str | None = None) -> int:
        """Return the growth of the series with a prefix since the fault began, minus that of another prefix.

        Both are of the same moment, because control traffic changes them.
        """
        now = scrape(self.server.process.metrics_url)

        def growth(begin: str) -> float:
            return sum(now[series] - self._before.get(series, 0.0) for series in now if series.startswith(begin))

        return round(growth(name) - (growth(less) if less else 0.0))

    def record_growth(self) -> None:
        """Record the growth of the metric, during the fault if it falls at its end."""
        if self.fault.metric:
            self.num_seen = max(self.num_seen, self.growth_of(self.fault.metric))

    def require(self, holds: bool, sentence: str) -> None:
        """Record a failure unless a condition holds."""
        if not holds:
            self.broken.append(sentence)

    def require_ok(self, when: str, replies: Iterable[Reply]) -> None:
        """Require right responses."""
        failed = {f"{reply.status} {reply.message}" for reply in replies if reply.status != "OK"}
        self.require(not failed, f"{when}: {', '.join(failed)}")

    def require_late(self, when: str, replies: Sequence[Reply], deadline_s: float, *, slack_s: float = 0.5) -> None:
        """Record the statuses of callers with a deadline, and require that these come when it passes."""
        self.hits.update(reply.status for reply in replies)
        late_s = max(reply.latency_s for reply in replies) - deadline_s
        self.require(late_s < slack_s, f"{when}: a status came {late_s:.2f} s after the deadline")

    def ask(self, number: int = 0, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask one of the questions on a new connection."""
        with connect(self.address) as client:
            return self.questions[number % len(self.questions)].ask(client, timeout_s=timeout_s)

    def logged(self) -> str:
        """Return the server's log since the fault began."""
        return self.server.log.read_bytes()[self._log_begin :].decode(errors="replace")
