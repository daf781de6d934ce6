"""Faults, the server that they are injected into, and their results."""

import ctypes
import itertools
import mmap
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from loadtests.generator.calls import Reply
from loadtests.generator.client import TIMEOUT_S
from loadtests.generator.metrics import scrape
from loadtests.hostile.http2 import RawConnection
from loadtests.report.report import Check, Report, at_most, require
from loadtests.scenarios.control_traffic import KnownRequest, TranslatingTraffic, connect
from loadtests.scenarios.stress_server import log_path, poll, started

NUM_WORKERS: Final = 2  # one that hangs, and another
HANDSHAKE_TIMEOUT_S: Final = 2.0  # this and the next are shorter than the defaults, which would only take longer
STREAM_IDLE_TIMEOUT_S: Final = 2.0
_SOURCE: Final = Path(__file__).with_name("faults.cpp")
_SETTINGS: Final = {
    "DRAGOMAN_RUNTIME__ENGINE": "native",
    "DRAGOMAN_SCHEDULING__NUM_WORKERS": str(NUM_WORKERS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_GRPC__STREAM_IDLE_TIMEOUT_S": str(STREAM_IDLE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_TRIGGER_TIMEOUT_S: Final = 10.0
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
RunKind = Literal["fail-before", "fail-after", "hang"]
_RUN_KINDS: Final[Sequence[RunKind]] = ("fail-before", "fail-after", "hang")  # in the order of faults.cpp


class _Run(ctypes.Structure):
    _fields_ = (("num_faults", ctypes.c_int32), ("kind", ctypes.c_int32), ("seconds", ctypes.c_double))


class Control(ctypes.Structure):
    """Memory that all processes of a server share with this one, as in faults.cpp."""

    _fields_ = (
        ("clock_offset_ns", ctypes.c_int64),
        ("shown_ns", ctypes.c_int64),
        ("encoder", _Run),
        ("step", _Run),
        ("log_path", ctypes.c_char * 128),
    )


def _compiled(library: Path) -> Path:
    """Compile the library that injects faults; raises ServerProcessError."""
    engine = Path(str(files("dragoman_native") / "libdragoman_native.so"))
    linked = ["-Wl,--no-as-needed", str(engine), f"-Wl,-rpath,{engine.parent}", "-ldl"]
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), *linked]
    if (compiler := shutil.which("c++")) is None:
        raise ServerProcessError("the scenario chaos requires a C++ compiler (c++)")
    if subprocess.run([compiler, *command[1:]], check=False, timeout=60.0).returncode:  # noqa: S603
        raise ServerProcessError(f"{_SOURCE} cannot be compiled")
    return library


@dataclass(frozen=True, slots=True)
class ChaosServer:
    """A ready server whose engine, clock and log can fail."""

    process: ServerProcess
    models: Path
    original_models: Path
    log: Path
    control: Control
    known_requests: list[KnownRequest] = field(default_factory=list)  # with the right answers

    def arm(self, kind: RunKind, where: Literal["encoder", "step"], *, count: int = 1, seconds: float = 0.0) -> None:
        """Let the next runs of the native engine fail before or after they write their results, or start later."""
        run: _Run = getattr(self.control, where)
        run.kind, run.seconds = _RUN_KINDS.index(kind), seconds
        run.num_faults = count

    def wait_until_triggered(self) -> None:
        """Wait until every armed fault has met a run; raises ServerProcessError."""
        runs = (self.control.encoder, self.control.step)
        if poll(lambda: sum(run.num_faults for run in runs), lambda left: not left, timeout_s=_TRIGGER_TIMEOUT_S):
            raise ServerProcessError(f"an armed fault was not triggered within {_TRIGGER_TIMEOUT_S:g} s")

    def hang_steps(self, seconds: float, *, count: int = 1) -> None:
        """Hang a number of decoding steps; return when they do."""
        self.arm("hang", "step", count=count, seconds=seconds)
        self.wait_until_triggered()

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Redirect standard error of the server to a path."""
        self.control.log_path = str(path.resolve()).encode()
        try:
            yield
        finally:
            self.control.log_path = b""


def copy_tree(original: Path, copy: Path) -> None:
    """Replace a directory by a copy of another one."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)


@contextmanager
def chaos_server(output: Path, *, models: Path, settings: Mapping[str, str]) -> Iterator[ChaosServer]:
    """Start a server on a copy of the models; raises ServerProcessError."""
    copy, control = output / "models", (output / "control").resolve()
    copy_tree(models, copy)
    control.write_bytes(bytes(ctypes.sizeof(Control)))
    library = str(_compiled((output / "faults.so").resolve()))
    injection = {"LD_PRELOAD": library, "DRAGOMAN_NATIVE_LIBRARY": library, "CHAOS_CONTROL": str(control)}
    with (
        control.open("r+b") as file,
        started(output, models=copy, settings={**_SETTINGS, **injection, **settings}) as process,
    ):
        shared = Control.from_buffer(mmap.mmap(file.fileno(), 0))
        yield ChaosServer(process, copy, models, log_path(output), shared)


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
    inject: Callable[["FaultRun"], None]  # injects and ends it
    amounts: tuple[int, int] = (0, 0)  # number of calls, connections or runs
    seconds: tuple[float, float] = (0.0, 0.0)  # duration, if it can be chosen
    expected: Set[str] = frozenset()  # statuses for affected callers, at least one; empty: any
    hits_batch: bool = False  # also affects requests of the same batch; metrics must count every caller with the status
    metric: str = ""  # prefix of series that must grow; empty: gRPC rejects it before it calls the service
    limits: Mapping[str, float] = field(default_factory=dict)  # instead of those in `LIMITS`
    delays: Set[str] = frozenset()  # limits extended by the duration, because callers must wait for the end
    settings: Mapping[str, str] = field(default_factory=dict)  # of a server of its own


def fault(**fields: Any) -> Callable[[Callable[["FaultRun"], None]], Fault]:
    """Return a decorator that makes a fault of a function, with its name and docstring."""

    def declare(inject: Callable[[FaultRun], None]) -> Fault:
        summary = str(inject.__doc__).partition("\n")[0].rstrip(".")
        return Fault(name=inject.__name__.replace("_", "-"), summary=summary, inject=inject, **fields)

    return declare


class FaultRun:
    """A fault that is injected into a server with these metrics before, and its observations."""

    def __init__(self, fault: Fault, server: ChaosServer, mode: str, *, before: Mapping[str, float]) -> None:
        self.fault, self.amount = fault, fault.amounts[mode == "full"]
        self.seconds = fault.seconds[mode == "full"]
        self.server, self.known_requests, self.address = server, server.known_requests, server.process.target
        self.control = TranslatingTraffic(self.address, self.known_requests)
        self.connections = ExitStack()
        self.status_counts = Counter[str]()  # of affected callers
        self.num_seen = 0  # growth of the metric
        self.broken = list[str]()
        self.measured = dict[str, float]()  # values for `LIMITS`
        self.left: Mapping[str, float] = {}  # remaining work
        self.began_s = time.monotonic()
        self.elapsed_s = 0.0
        self._log_begin = server.log.stat().st_size
        self._before = before

    @property
    def limits(self) -> dict[str, float]:
        """Limits of this fault."""
        limits = {**LIMITS, **self.fault.limits}
        return {name: limit + self.seconds * (name in self.fault.delays) for name, limit in limits.items()}

    @property
    def errors(self) -> list[Reply]:
        """Failed calls of control traffic."""
        allowed = {"OK", *(self.fault.expected if self.fault.hits_batch else ())}
        failed = [reply for reply in self.control.translations if reply.status not in allowed]
        return failed + [reply for reply in self.control.probes if reply.status != "OK"]

    @property
    def report(self) -> Report:
        """Figures and checks."""
        expected, metric, measured = self.fault.expected, self.fault.metric, dict(self.measured)
        translations, probes, counts = self.control.translations, self.control.probes, self.status_counts
        for name, replies in (("slowest_s", translations), ("health_s", probes)):
            measured |= {name: max(reply.latency_s for reply in replies)} if replies else {}
        is_expected = not expected or (counts.total() > 0 and counts.keys() <= expected)
        errors = [f"{reply.status}: {reply.message}" for reply in self.errors]
        return Report(
            name="chaos",
            figures={
                "fault": self.fault.name,
                "hit": "+".join(f"{status}:{count}" for status, count in sorted((+counts).items())) or "nobody",
                "bystanders": len(translations) + len(probes),
                "bystander_errors": len(errors),
                **{name: round(measured[name], 2) if name in measured else "never" for name in LIMITS},
                "seen": f"{metric}{self.num_seen:+d}" if metric else "-",
            },
            checks=[
                Check(name=self.fault.name, failures=self.broken),
                require("affected callers get the expected status", is_expected, f"statuses: {dict(counts)}"),
                Check(name="control traffic is answered", failures=errors),
                require("metrics show the fault", not metric or self.num_seen > 0, f"{metric} has not grown"),
                require("no requests leaked", not self.left, f"{dict(self.left)}"),
                *(
                    at_most(name, measured[name], limit) if name in measured else require(name, False, "never measured")
                    for name, limit in self.limits.items()
                ),
            ],
        )

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        statuses = Counter(reply.status for reply in self.errors)
        return {**self.report.as_json(), "bystander_statuses": dict(statuses), "elapsed_s": self.elapsed_s}

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
        self.status_counts.update(reply.status for reply in replies)
        late_s = max(reply.latency_s for reply in replies) - deadline_s
        self.require(late_s < slack_s, f"{when}: a status came {late_s:.2f} s after the deadline")

    def ask(self, number: int = 0, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Send one of the known requests on a new connection."""
        with connect(self.address) as client:
            return self.known_requests[number % len(self.known_requests)].send(client, timeout_s=timeout_s)

    def logged(self) -> str:
        """Return the server's log since the fault began."""
        return self.server.log.read_bytes()[self._log_begin :].decode(errors="replace")
