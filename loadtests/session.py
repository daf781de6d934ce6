"""One Locust process's part of a run: it waits for the common start, keeps its share of the schedule, keeps the ledger.

The processes of a run (Locust's `--processes`, or a master and its workers) share one machine and so one monotonic
clock. Each prepares its calls; when all have, the master names the moment at which the schedule begins; when all are
through, it ends the run. A lone process does the same with itself.
"""

import argparse
import gc
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any, Final

from loadtests.arrivals import Arrival, make_schedule, parse_arrivals
from loadtests.client import Client
from loadtests.flags import workload_of
from loadtests.records import CallRecord, write_records
from loadtests.wire import Outcome
from loadtests.workload import PlannedCall

KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"

CLOSED: Final = "closed"
"""The flag `--arrivals` of users who wait for their answers."""

TEXTS_FLAG: Final = "--texts"
"""What Locust's flag of the text profile is called, as its own `--profile` is something else."""

_PREPARED: Final = "dragoman-prepared"
_BEGIN: Final = "dragoman-begin"
_DONE: Final = "dragoman-done"
"""Messages between the processes: of a worker, of the master, of a worker."""

_LEAD_S: Final = 0.2
"""Between the master's word and the start, so that it has reached everybody."""
_CONNECT_S: Final = 20.0

_log = logging.getLogger("loadtests")

Planned = tuple[PlannedCall, float]
"""A call, and when it should be sent on `time.monotonic()`."""


class Session:
    """Made once Locust has read its flags and knows its part."""

    def __init__(self, environment: Any, spawn: Callable[..., Any]) -> None:
        """Join the others of the run.

        Args:
            environment: Locust's.
            spawn: runs a function beside what runs already.

        Raises:
            ValueError: if the flags make no sense.
        """
        self._environment = environment
        self._options = environment.parsed_options
        self._spawn = spawn
        self._plan: Plan | None = None
        self._num_prepared = self._num_done = 0
        self._num_taken = self._num_open = 0
        self._records: list[CallRecord] = []
        self._connection: Client | None = None
        self._share: Iterator[tuple[PlannedCall, float | None]] = iter(())
        self._began_s = 0.0
        self._cpu_at_begin_s = 0.0
        self._has_begun = Event()
        self._is_exhausted = self._is_done = self._is_written = False
        listeners = {_PREPARED: self._on_prepared, _BEGIN: self._on_begin, _DONE: self._on_done}
        for name, listener in listeners.items():
            environment.runner.register_message(name, listener)
        if not self._options.worker:  # a worker gets the master's flags when the test starts
            if self._options.duration is None and self._options.run_time:
                self._options.duration = float(self._options.run_time)
            Plan(self._options)

    @property
    def is_open_loop(self) -> bool:
        """Whether calls are sent when they are due, whatever became of those before."""
        return bool(self._options.arrivals != CLOSED)

    @property
    def _num_processes(self) -> int:
        """Of those that send."""
        is_distributed = self._options.master or self._options.worker
        return max(1, self._options.expect_workers) if is_distributed else 1

    def prepare(self) -> None:
        """Connect, make the calls of this process's share, and say so; the master only waits for the others."""
        self._has_begun.clear()
        if self._options.master:
            return
        index = max(0, self._environment.runner.worker_index)
        try:
            ca = Path(self._options.ca) if self._options.ca else None
            self._connection = Client(self._environment.host, key=os.environ.get(KEY_VARIABLE), ca=ca)
            self._connection.wait_until_ready(_CONNECT_S)
            self._plan = Plan(self._options)
            self._share = iter(self._plan.share(index, self._num_processes))
        except (ConnectionError, OSError, ValueError) as error:
            _log.error("%s: %s", self._environment.host, error)
            self._environment.process_exit_code = 1
            self._end()
            return
        gc.collect()
        gc.freeze()  # what has been made stays, and need not be looked at while calls are sent
        self._environment.runner.send_message(_PREPARED, {"index": index})

    def next_call(self) -> Planned | None:
        """Return the next call of this process; None if there is none any more. Waits for the common start."""
        self._has_begun.wait()
        now_s = time.monotonic()
        planned, offset_s = next(self._share, (None, None))
        is_over = self._plan is None or (offset_s is None and self._plan.is_over(now_s - self._began_s))
        if planned is None or is_over:
            self._exhaust()
            return None
        self._num_taken += 1
        self._num_open += 1
        return planned, now_s if offset_s is None else self._began_s + offset_s

    def make(self, planned: PlannedCall, planned_s: float) -> CallRecord:
        """Make a call that `next_call` returned, and note what became of it."""
        try:
            record = self._connected().make(planned, planned_s)
            self._records.append(record)
            self._tell_locust(record)
        finally:
            self._num_open -= 1
            self._finish()
        return record

    def _connected(self) -> Client:
        if self._connection is None:
            raise RuntimeError("calls come after the start")
        return self._connection

    def write(self) -> None:
        """Write the ledger of this process, once, if it was asked for."""
        if not self._options.records or self._options.master or self._is_written or not self._has_begun.is_set():
            return
        self._is_written = True
        directory = Path(self._options.records)
        index = max(0, self._environment.runner.worker_index)
        cpu_s = time.process_time() - self._cpu_at_begin_s
        write_records(ledger_path(directory, index), self._records)
        account = {"began_s": self._began_s, "cpu_s": cpu_s, "calls": self._num_taken}
        account_path(directory, index).write_text(json.dumps(account) + "\n", encoding="utf-8")

    def _on_prepared(self, **_: Any) -> None:
        self._num_prepared += 1
        if self._num_prepared == self._num_processes:
            self._num_prepared = 0
            self._environment.runner.send_message(_BEGIN, {"began_s": time.monotonic() + _LEAD_S})

    def _on_begin(self, *, msg: Any, **_: Any) -> None:
        self._began_s = msg.data["began_s"]
        self._cpu_at_begin_s = time.process_time()
        self._has_begun.set()

    def _on_done(self, **_: Any) -> None:
        self._num_done += 1
        if self._num_done == self._num_processes:
            self._end()

    def _exhaust(self) -> None:
        self._is_exhausted = True
        self._finish()

    def _finish(self) -> None:
        """Say so if the last call of this process has ended."""
        if self._is_exhausted and not self._num_open and not self._is_done:
            self._is_done = True
            self.write()
            self._environment.runner.send_message(_DONE)

    def _end(self) -> None:
        self._spawn(self._environment.runner.quit)

    def _tell_locust(self, record: CallRecord) -> None:
        """Let Locust count the call; one that was left as planned is no failure."""
        is_well = record.outcome in {Outcome.ANSWERED, Outcome.LEFT}
        self._environment.events.request.fire(
            request_type="grpc",
            name=record.method,
            response_time=1000 * record.latency_s,
            response_length=0,
            exception=None if is_well else RuntimeError(f"{record.outcome.value}: {record.status}"),
            context={},
        )


class Plan:
    """What the flags say is called, and when."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Check the flags.

        Raises:
            ValueError: naming the flag and what it takes.
        """
        self._workload = workload_of(options)
        self._seed: int = options.seed
        self._warm_up_s: float = options.warm_up
        self._duration_s: float | None = options.duration
        is_open = options.arrivals != CLOSED
        self._arrivals = parse_arrivals(options.arrivals, rate_per_s=options.rate) if is_open else None
        if is_open and self._duration_s is None:
            raise ValueError("--arrivals needs --duration or --run-time: calls are planned beforehand")

    def share(self, index: int, count: int) -> Iterator[tuple[PlannedCall, float | None]]:
        """Return every `count`-th call from `index` on, with its offset from the start; None: when a user is free."""
        calls = self._workload.calls(self._seed)
        if self._arrivals is None or self._duration_s is None:
            return ((calls.call(number), None) for number in itertools.count(index, count))
        schedule = make_schedule(
            self._arrivals, warm_up_s=self._warm_up_s, duration_s=self._duration_s, seed=self._seed
        )
        share: list[Arrival] = schedule[index::count]
        return iter([(calls.call(one.number, method=one.method), one.offset_s) for one in share])

    def is_over(self, elapsed_s: float) -> bool:
        """Tell whether a closed loop makes no further calls so long after its start."""
        return self._duration_s is not None and elapsed_s >= self._warm_up_s + self._duration_s


def ledger_path(directory: Path, index: int) -> Path:
    """Return where a process writes what became of its calls."""
    return directory / f"calls-{index}.jsonl"


def account_path(directory: Path, index: int) -> Path:
    """Return where a process writes when it began, the processor time it took since, and the number of its calls."""
    return directory / f"process-{index}.json"
