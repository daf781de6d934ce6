"""Scenario `chaos`: one fault after the other; checks that other callers are not affected and the server recovers."""

import argparse
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from matplotlib.figure import Figure

from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.calls import translate_requests
from loadtests.generator.flags import several
from loadtests.generator.metrics import footprint, remaining_work, scrape
from loadtests.report.report import Report, new_figure, require
from loadtests.scenarios.chaos import connections, processes
from loadtests.scenarios.chaos.fault import Fault, Result, Stage, chaos_server, requests_metric
from loadtests.scenarios.control_traffic import Question, TranslatingTraffic, connect, learn_answers
from loadtests.scenarios.stress_server import poll

SUMMARY: Final = "one fault after the other; checks other callers and recovery"

DESCRIPTION: Final = """\
Starts the server as an operator does, on free local ports with a copy of the bundled model en-de, and injects one fault
after the other, while control traffic translates and checks the health service.

Checks for each fault: affected callers get the right status; no other caller fails, waits longer than the fault
explains, or gets another translation than before, bit for bit; a new connection is answered within seconds; afterwards
no request is in flight and no segment queued or decoded; memory, threads and open files are almost unchanged; metrics
show the fault, unless gRPC rejects it before it calls the service. At the end the server drains.

Faults inside the process (a run that raises, a failure of ONNX Runtime, a hanging step, a lost log) are injected by a
`sitecustomize` module on the server's PYTHONPATH; the server has no hook for them. A preloaded library, compiled with
cc, shifts the wall clock; without a C compiler that fault is skipped.

--mode short injects a small amount of every fault, in about a minute. DIR contains chaos.json, chaos.png and the log of
each server."""

FAULTS: Final = tuple(
    one for module in (connections, processes) for one in vars(module).values() if isinstance(one, Fault)
)  # in the order of injection: the most damaging last, those with servers of their own at the end

_SETTLE_S: Final = 10.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add, by_name = parser.add_argument, {fault.name: fault for fault in FAULTS}
    add("--only", type=several(by_name), default=FAULTS, metavar="NAME,...", help="some faults (all)")
    add("--list", action="store_true", help="print the faults, and exit")


def run(options: argparse.Namespace) -> int:
    """Inject the faults that this machine supports; return the exit code."""
    unsupported = [fault for fault in options.only if fault.needs and not shutil.which(fault.needs)]
    for fault in unsupported:
        print(f"skipped: {fault.name} needs {fault.needs}", file=sys.stderr)
    faults = [fault for fault in options.only if fault not in unsupported]
    if options.list:
        print("\n".join(f"{fault.name:<20} {fault.summary}" for fault in faults))
        return 0
    results, exit_codes = run_faults(faults, options.mode, options.output, options.model_dir, options.seed)
    return report_of(results, exit_codes, mode=options.mode).conclude(options.output)


def run_faults(
    faults: Sequence[Fault], mode: str, output: Path, models: Path, seed: int
) -> tuple[list[Result], list[int | None]]:
    """Inject faults, on one server as long as it runs; return their results and the exit codes of the servers."""
    left, results, exit_codes = deque(faults), list[Result](), list[int | None]()
    while left:
        server_output = output / f"server-{len(exit_codes) + 1}"
        environment = left[0].environment(server_output) if left[0].environment else {}
        with chaos_server(server_output, models=models, environment=environment) as server:
            questions = _warm_up(server.process.target, seed)
            while left and server.process.exit_code is None:
                fault = left.popleft()
                results.append(_run_fault(Stage(fault, server, questions, mode)))
                report = results[-1].report
                print(report.line, flush=True)
                report.print_failures()
                if fault.environment or (left and left[0].environment):
                    break
            with suppress(ServerProcessError):  # it still runs, so it has no exit code
                server.process.stop()
            exit_codes.append(server.process.exit_code)
    return results, exit_codes


def _warm_up(address: str, seed: int) -> list[Question]:
    """Fill the batches, so that memory is stable; return questions with their answers."""
    questions = learn_answers(address, translate_requests(seed, count=8, texts=1))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda large: learn_answers(address, [large]), translate_requests(seed, count=4, texts=48)))
    with TranslatingTraffic(address, questions) as control:
        for _ in questions:
            control.wait_for_answers()
    return questions


def _run_fault(stage: Stage) -> Result:
    """Inject a fault during control traffic; the end of the server is a result as well."""
    process, control = stage.server.process, stage.control
    before = footprint(process.pid)
    try:
        with control:
            control.wait_for_answers()
            with stage.connections:
                stage.fault.inject(stage)
            _recover(stage)
        settled = poll(
            lambda: scrape(process.metrics_url),
            lambda now: now["dragoman_ready"] == 1 and not remaining_work(now),
            timeout_s=_SETTLE_S,
        )
        stage.left = remaining_work(settled)
        stage.require(settled["dragoman_ready"] == 1, "the server is not ready")
        stage.record_growth()
        if stage.fault.hits_batch:
            _require_statuses(stage)
        max_files = before.num_fds + stage.limits["files"]  # after closed connections are cleaned up
        after = poll(lambda: footprint(process.pid), lambda now: now.num_fds <= max_files, timeout_s=_SETTLE_S)
        stage.measured["rss_growth_mb"] = after.rss_mb - before.rss_mb
        stage.measured["threads"] = after.num_threads - before.num_threads
        stage.measured["files"] = after.num_fds - before.num_fds
    except (
        ServerProcessError,
        OSError,
        psutil.Error,
    ) as error:  # OSError: connections refused, or local ports exhausted
        stage.broken.append(f"the fault could not be completed: {error}")
    if process.exit_code is not None:
        stage.broken.append(f"the server exited with {process.exit_code}")
    stage.translations, stage.probes = control.translations, control.probes
    stage.elapsed_s = time.monotonic() - stage.began_s
    return stage


def _recover(stage: Stage) -> None:
    """Wait until a new connection and control traffic get right responses, or the server has ended."""
    began_s = time.monotonic()

    def is_healthy() -> bool:
        with connect(stage.address) as client:
            replies = (client.check(timeout_s=5.0), stage.questions[0].ask(client, timeout_s=5.0))
            return all(reply.status == "OK" for reply in replies)

    if poll(is_healthy, lambda healthy: healthy or stage.server.process.exit_code is not None, timeout_s=30.0):
        stage.measured["recovered_s"] = time.monotonic() - began_s
        stage.control.wait_for_answers()


def _require_statuses(stage: Stage) -> None:
    """Require that the metric counts every caller with the status, including others in the batch."""
    (status,) = stage.fault.expected
    metric = requests_metric("Translate", status)
    num_statuses = stage.hits[status] + sum(reply.status == status for reply in stage.control.translations)
    num_failed = poll(lambda: stage.growth_of(metric), lambda count: count == num_statuses, timeout_s=_SETTLE_S)
    stage.require(num_failed == num_statuses, f"{num_failed} requests failed, but {num_statuses} callers got {status}")
    stage.hits[status] = num_statuses


def report_of(results: Sequence[Result], exit_codes: Sequence[int | None], *, mode: str = "full") -> Report:
    """Return the report of all faults; every server must have ended with 0."""
    failed = [result.fault.name for result in results if result.report.failures]
    return Report(
        name="chaos",
        figures={"faults": len(results), "held": len(results) - len(failed)},
        checks=[
            require("every fault passes its checks", not failed, ", ".join(failed)),
            require("faults were injected", bool(results), "none"),
            require("servers exit with 0", set(exit_codes) <= {0}, f"exit codes {list(exit_codes)}"),
        ],
        values={
            "mode": mode,
            "summaries": {result.fault.name: result.fault.summary for result in results},
            "exit_codes": list(exit_codes),
            "faults": [result.as_json() for result in results],
        },
        picture=partial(_picture, results),
    )


def _picture(results: Sequence[Result]) -> Figure:
    """Plot the latency of each translation of control traffic; failed faults are red."""
    figure, (axes,) = new_figure(size=(13, 5))
    axes.set(xlabel="start, s", ylabel="latency of a translation of control traffic, s", yscale="log")
    for number, result in enumerate(results):
        begin_s = result.began_s - results[0].began_s
        end_s, color = begin_s + result.elapsed_s, "tab:red" if result.report.failures else "tab:green"
        axes.axvspan(begin_s, end_s, color=color, alpha=0.12 if number % 2 else 0.22, linewidth=0)
        name = axes.text((begin_s + end_s) / 2, 0.98, result.fault.name, transform=axes.get_xaxis_transform())
        name.set(rotation=90, ha="center", va="top")
        begins = [reply.began_s - results[0].began_s for reply in result.translations]
        axes.plot(begins, [reply.latency_s for reply in result.translations], ".", color="tab:blue", markersize=2)
    axes.grid(visible=True, which="both", axis="y", alpha=0.3)
    return figure
