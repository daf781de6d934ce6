"""Offers load to a server that runs already: starts Locust, watches the server meanwhile, gathers every call."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from loadtests.arrivals import Arrivals
from loadtests.flags import flags_of
from loadtests.records import CallRecord, Summary, read_records, summarize, write_records
from loadtests.sampler import Sample, Sampler
from loadtests.session import TEXTS_FLAG, account_path, ledger_path
from loadtests.workload import Workload

RECORDS_NAME: Final = "calls.jsonl"
"""Every call of a run, its warm-up included."""

MAX_PROCESSES: Final = 64
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
_START_S: Final = 60.0
"""Most seconds for Locust to start, to connect, and to end once the last call has."""
_POLL_S: Final = 0.05
_KILL_S: Final = 5.0


class LoadError(Exception):
    """The load could not be offered, so that nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered."""

    workload: Workload
    arrivals: Arrivals | None
    """Of the calls of all processes together; None: a closed loop, whose users wait for their answers."""

    num_users: int = 1
    """Of the closed loop."""

    pause_s: float = 0.0
    """Mean pause of a user of the closed loop between two calls."""

    duration_s: float
    """Of what is measured."""

    warm_up_s: float = 0.0
    """Before it, at the same rate."""

    seed: int = 1
    num_processes: int = 1
    """That send; each takes its share of one schedule."""

    def __post_init__(self) -> None:
        """Check what a type cannot say.

        Raises:
            ValueError: naming the field and what it must be.
        """
        if not 0 < self.duration_s <= 86_400 or not 0 <= self.warm_up_s <= 86_400:
            raise ValueError(
                f"{self.warm_up_s:g} s to warm up and {self.duration_s:g} s: expected up to 86400, the second above 0"
            )
        if not 1 <= self.num_processes <= MAX_PROCESSES:
            raise ValueError(f"{self.num_processes} processes: expected 1 to {MAX_PROCESSES}")
        if not self.num_processes <= self.num_users <= 10_000 and self.arrivals is None:
            raise ValueError(f"{self.num_users} users: expected at least one for each process, at most 10000")
        if self.pause_s < 0:
            raise ValueError(f"a pause of {self.pause_s:g} s: expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What became of it."""

    records: Sequence[CallRecord]
    """Of the measured time, in the order in which they were planned."""

    warm_up_records: Sequence[CallRecord]
    samples: Sequence[Sample]
    """The server's metrics over time, warm-up included."""

    began_s: float
    """When the measured time began, on `time.monotonic()`."""

    duration_s: float
    generator_cpu_s: float
    """Processor time of all sending processes while they sent, warm-up included."""

    def summary(self) -> Summary:
        """Return the figures of the measured time.

        Raises:
            ValueError: if not one call was planned in it.
        """
        return summarize(self.records, duration_s=self.duration_s, generator_cpu_s=self.generator_cpu_s)


def offer(
    target: str,
    load: Load,
    *,
    directory: Path,
    metrics_url: str | None = None,
    pids: Sequence[int] = (),
    ca: Path | None = None,
) -> LoadResult:
    """Offer load and wait until every call has ended.

    Args:
        target: HOST:PORT of a server that takes calls.
        load: what is offered.
        directory: gets `calls.jsonl` with every call and `locust.log`, in place of those of an earlier run.
        metrics_url: where the server exposes its metrics; None: they are not looked at.
        pids: processes of this machine that make up the server, whose processor time and memory are sampled.
        ca: certificate of the authority that signed the server's; None: the connection is not encrypted.

    Raises:
        LoadError: if Locust fails, or has not ended long after the last deadline; the message has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*_parts(directory), directory / RECORDS_NAME):
        path.unlink(missing_ok=True)
    total_s = load.warm_up_s + load.duration_s
    command = _command(target, load, directory, ca)
    with Sampler(metrics_url, pids) as sampler, _locust(command, directory / "locust.log") as process:
        _wait(process, directory, total_s=total_s, patience_s=load.workload.deadline_s + _START_S)
    return _gather(directory, load, sampler.samples)


def _command(target: str, load: Load, directory: Path, ca: Path | None) -> list[str]:
    """Return how Locust is started."""
    flags = {
        "--host": target,
        "--duration": repr(load.duration_s),
        "--warm-up": repr(load.warm_up_s),
        "--seed": load.seed,
        "--records": directory.absolute(),
        "--exit-code-on-error": 0,  # failed calls are in the records
    }
    if load.arrivals is None:
        flags |= {"--users": load.num_users, "--spawn-rate": load.num_users, "--pause": repr(load.pause_s)}
    else:  # one user of each process keeps the schedule
        flags |= {"--users": load.num_processes, "--spawn-rate": load.num_processes}
        flags |= {"--arrivals": load.arrivals.text, "--rate": repr(load.arrivals.rate_per_s)}
    if ca is not None:
        flags["--ca"] = ca.absolute()
    if load.num_processes > 1:
        port = _free_port()
        flags |= {"--processes": load.num_processes, "--master-bind-host": "127.0.0.1", "--master-host": "127.0.0.1"}
        flags |= {"--master-bind-port": port, "--master-port": port}
    command = [sys.executable, "-m", "locust", "--locustfile", str(_LOCUSTFILE), "--headless", "--only-summary"]
    return [
        *command,
        *(f"{name}={value}" for name, value in flags.items()),
        *flags_of(load.workload, profile_flag=TEXTS_FLAG),
    ]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _locust(command: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start Locust in a group of its own, which does not outlive the block."""
    path = os.pathsep.join([str(_CHECKOUT), str(_CHECKOUT / "proto"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    with log.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            command,
            cwd=_CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() != 0:  # its workers, too, if it failed without them
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_S)


def _wait(process: "subprocess.Popen[bytes]", directory: Path, *, total_s: float, patience_s: float) -> None:
    """Wait until Locust has ended, and show how far the load is.

    Raises:
        LoadError: if it fails, or does not end.
    """
    log = directory / "locust.log"
    until_s = time.monotonic() + total_s + patience_s
    began_s, whole_s = time.monotonic(), round(total_s)
    with tqdm(total=whole_s, unit="s", desc="load", disable=None, leave=False) as bar:
        while process.poll() is None:
            now_s = time.monotonic()
            if now_s > until_s:
                raise LoadError(f"the load has not ended {patience_s:g} s after it should have; it said:\n{_tail(log)}")
            bar.update(min(whole_s, int(now_s - began_s)) - bar.n)
            time.sleep(_POLL_S)
    if process.returncode:
        raise LoadError(f"Locust ended with {process.returncode}; it said:\n{_tail(log)}")


def _parts(directory: Path) -> list[Path]:
    """Return what the processes of a run, this one or another, have written."""
    return sorted([*directory.glob("calls-*.jsonl"), *directory.glob("process-*.json")])


def _gather(directory: Path, load: Load, samples: Sequence[Sample]) -> LoadResult:
    """Put the ledgers of all processes together.

    Raises:
        LoadError: if one is missing, incomplete, or began at another time than the others.
    """
    accounts, records = list[dict[str, Any]](), list[CallRecord]()
    for index in range(load.num_processes):
        try:
            account = json.loads(account_path(directory, index).read_text(encoding="utf-8"))
            ledger = read_records(ledger_path(directory, index))
        except (OSError, ValueError) as error:
            raise LoadError(
                f"the ledger of process {index} cannot be read: {error}; {_tail(directory / 'locust.log')}"
            ) from error
        if len(ledger) != account["calls"]:
            raise LoadError(f"process {index} made {account['calls']} calls, its ledger has {len(ledger)}")
        accounts.append(account)
        records += ledger
    if len({account["began_s"] for account in accounts}) != 1:
        raise LoadError("the processes did not begin together")
    records.sort(key=lambda record: record.planned_s)
    write_records(directory / RECORDS_NAME, records)
    for path in _parts(directory):
        path.unlink()
    began_s = accounts[0]["began_s"] + load.warm_up_s
    return LoadResult(
        records=[record for record in records if record.planned_s >= began_s],
        warm_up_records=[record for record in records if record.planned_s < began_s],
        samples=samples,
        began_s=began_s,
        duration_s=load.duration_s,
        generator_cpu_s=sum(account["cpu_s"] for account in accounts),
    )


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
