"""Scenario `chaos`: one fault after the other; checks that other callers are not affected and the server recovers."""

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.calls import translate_requests
from loadtests.generator.flags import several
from loadtests.generator.metrics import footprint, remaining_work, scrape
from loadtests.report.report import Report, require
from loadtests.scenarios.chaos import connections, processes, rollout
from loadtests.scenarios.chaos.fault import ChaosServer, Fault, FaultRun, chaos_server, requests_metric
from loadtests.scenarios.control_traffic import KnownRequest, TranslatingTraffic, connect, record_answers
from loadtests.scenarios.stages import run_stages
from loadtests.scenarios.stress_server import poll

SUMMARY: Final = "one fault after the other; checks other callers and recovery"

DESCRIPTION: Final = """\
Starts the server as an operator does, on free local ports with a copy of the bundled model en-de, and injects one fault
after the other, while control traffic translates and checks the health service.

Checks for each fault: affected callers get the right status; no other caller fails, waits longer than the fault
explains, or gets another translation than before, bit for bit; a new connection is answered within seconds; afterwards
no request is in flight and no segment queued or decoded; memory, threads and open files are almost unchanged; metrics
show the fault, unless gRPC rejects it before it calls the service. At the end the server drains.

Faults inside the server (runs of the engine that fail or hang, a lost log, a shifted wall clock) are injected by a
library that the scenario compiles with c++, preloads and names as the native engine; the server has no hook for them.

--mode short injects a small amount of every fault, in about a minute. DIR contains chaos.json and the log of
each server."""

FAULTS: Final = tuple(
    one for module in (connections, rollout, processes) for one in vars(module).values() if isinstance(one, Fault)
)  # in the order of injection: the most damaging last, those with servers of their own at the end

_SETTLE_S: Final = 10.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add, by_name = parser.add_argument, {fault.name: fault for fault in FAULTS}
    add("--only", type=several(by_name), default=FAULTS, metavar="NAME,...", help="some faults (all)")
    add("--list", action="store_true", help="print the faults, and exit")


def run(options: argparse.Namespace) -> int:
    """Inject the faults; return the exit code."""
    if options.list:
        print("\n".join(f"{fault.name:<20} {fault.summary}" for fault in options.only))
        return 0
    runs, exit_codes = run_faults(options.only, options.mode, options.output, options.model_dir, options.seed)
    return report_of(runs, exit_codes, mode=options.mode).conclude(options.output)


def run_faults(
    faults: Sequence[Fault], mode: str, output: Path, models: Path, seed: int
) -> tuple[list[FaultRun], list[int | None]]:
    """Inject faults, on one server as long as it runs; return their results and the exit codes of the servers."""
    runs, exit_codes, numbers = list[FaultRun](), list[int | None](), itertools.count(1)

    @contextmanager
    def start(settings: Mapping[str, str]) -> Iterator[ChaosServer]:
        with chaos_server(output / f"server-{next(numbers)}", models=models, settings=settings) as server:
            server.known_requests.extend(_warm_up(server.process.target, seed))
            yield server

    def inject(server: ChaosServer, fault: Fault) -> FaultRun:
        run = _run_fault(FaultRun(fault, server, mode, before=scrape(server.process.metrics_url)))
        print(run.report.line, flush=True)
        run.report.print_failures()
        return run

    for settings, group in itertools.groupby(faults, key=lambda fault: fault.settings):
        more_runs, more_codes = run_stages(group, partial(start, settings), inject)
        runs += more_runs
        exit_codes += more_codes
    return runs, exit_codes


def _warm_up(address: str, seed: int) -> list[KnownRequest]:
    """Fill the batches, so that memory is stable; return requests with their answers."""
    known_requests = record_answers(address, translate_requests(seed, count=8, texts=1))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda large: record_answers(address, [large]), translate_requests(seed, count=4, texts=48)))
    with TranslatingTraffic(address, known_requests) as control:
        for _ in known_requests:
            control.wait_for_answers()
    return known_requests


def _run_fault(run: FaultRun) -> FaultRun:
    """Inject a fault during control traffic; the end of the server is a result as well."""
    process, control = run.server.process, run.control
    before = footprint(process.pid)
    try:
        with control:
            control.wait_for_answers()
            with run.connections:
                run.fault.inject(run)
            _recover(run)
        settled = poll(
            lambda: scrape(process.metrics_url),
            lambda now: now["dragoman_ready"] == 1 and not remaining_work(now),
            timeout_s=_SETTLE_S,
        )
        run.left = remaining_work(settled)
        run.require(settled["dragoman_ready"] == 1, "the server is not ready")
        run.record_growth()
        if run.fault.hits_batch:
            _require_statuses(run)
        max_files = before.num_fds + run.limits["files"]  # after closed connections are cleaned up
        after = poll(lambda: footprint(process.pid), lambda now: now.num_fds <= max_files, timeout_s=_SETTLE_S)
        run.measured["rss_growth_mb"] = after.rss_mb - before.rss_mb
        run.measured["threads"] = after.num_threads - before.num_threads
        run.measured["files"] = after.num_fds - before.num_fds
    except (ServerProcessError, OSError, psutil.Error) as error:  # OSError: no connection, or no free local port
        run.broken.append(f"the fault could not be completed: {error}")
    if process.exit_code is not None:
        run.broken.append(f"the server exited with {process.exit_code}")
    run.elapsed_s = time.monotonic() - run.began_s
    return run


def _recover(run: FaultRun) -> None:
    """Wait until a new connection and control traffic get right responses, or the server has ended."""
    began_s = time.monotonic()

    def is_healthy() -> bool:
        with connect(run.address) as client:
            replies = (client.check(timeout_s=5.0), run.known_requests[0].send(client, timeout_s=5.0))
            return all(reply.status == "OK" for reply in replies)

    if poll(is_healthy, lambda healthy: healthy or run.server.process.exit_code is not None, timeout_s=30.0):
        run.measured["recovered_s"] = time.monotonic() - began_s
        run.control.wait_for_answers()


def _require_statuses(run: FaultRun) -> None:
    """Require that the metric counts every caller with the status, including others in the batch."""
    (status,) = run.fault.expected
    metric = requests_metric("Translate", status)
    num_statuses = run.status_counts[status] + sum(reply.status == status for reply in run.control.translations)
    num_failed = poll(lambda: run.growth_of(metric), lambda count: count == num_statuses, timeout_s=_SETTLE_S)
    run.require(num_failed == num_statuses, f"{num_failed} requests failed, but {num_statuses} callers got {status}")
    run.status_counts[status] = num_statuses


def report_of(runs: Sequence[FaultRun], exit_codes: Sequence[int | None], *, mode: str = "full") -> Report:
    """Return the report of all faults; every server must have ended with 0."""
    failed = [run.fault.name for run in runs if run.report.failures]
    return Report(
        name="chaos",
        figures={"faults": len(runs), "held": len(runs) - len(failed)},
        checks=[
            require("every fault passes its checks", not failed, ", ".join(failed)),
            require("faults were injected", bool(runs), "none"),
            require("servers exit with 0", set(exit_codes) <= {0}, f"exit codes {list(exit_codes)}"),
        ],
        values={
            "mode": mode,
            "summaries": {run.fault.name: run.fault.summary for run in runs},
            "exit_codes": list(exit_codes),
            "faults": [run.as_json() for run in runs],
        },
    )
