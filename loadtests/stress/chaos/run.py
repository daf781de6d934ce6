"""All faults, one after the other: on one server, on another one after a server has ended, or on one of their own."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadtests import wire
from loadtests.sampler import Footprint, footprint, work_left
from loadtests.stress.callers import Bystanders, Client, Question, learn_answers
from loadtests.stress.chaos.fault import Fault, Result, Scale, Stage
from loadtests.stress.chaos.server import ChaosServer, chaos_server
from loadtests.target import ServerError, ServerProcess

_NUM_QUESTIONS: Final = 8
_NUM_WARM_UP_CALLS: Final = 4
_NUM_WARM_UP_TEXTS: Final = 48
_RECOVERY_TIMEOUT_S: Final = 30.0
_RECOVERY_CALL_S: Final = 5.0
_SETTLE_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of all faults."""

    results: Sequence[Result]
    exit_codes: Sequence[int]
    """Of the servers, as they ended or were ended; 0: it drained and ended well."""


def run_faults(
    faults: Sequence[Fault], scale: Scale, *, output: Path, models: Path, seed: int, report: Callable[[Result], None]
) -> Run:
    """Inject faults and report each as soon as it is over.

    Raises:
        ServerError: if a server does not start, or does not answer before anything was done to it.
    """
    results: list[Result] = []
    exit_codes: list[int] = []
    while len(results) < len(faults):
        on_one_server = _on_one_server(faults[len(results) :])
        done, exit_code = _run_on_server(
            on_one_server,
            scale,
            output=output / f"server-{len(exit_codes) + 1}",
            models=models,
            seed=seed,
            report=report,
        )
        results += done
        exit_codes.append(exit_code)
    return Run(results=results, exit_codes=exit_codes)


def _on_one_server(faults: Sequence[Fault]) -> Sequence[Fault]:
    """Return the first faults that can share a server: those that want none of their own, or one that does."""
    if faults[0].environment:
        return faults[:1]
    alone = next((index for index, fault in enumerate(faults) if fault.environment), len(faults))
    return faults[:alone]


def _run_on_server(
    faults: Sequence[Fault], scale: Scale, *, output: Path, models: Path, seed: int, report: Callable[[Result], None]
) -> tuple[list[Result], int]:
    """Return what came of the faults up to one that ended the server, and the server's exit code."""
    results = []
    environment = faults[0].environment() if faults[0].environment else {}
    with chaos_server(output, models=models, environment=environment) as server:
        questions = _warmed_up(server.process.target, seed)
        for fault in faults:
            result = run_fault(fault, server, scale, questions)
            exit_code = server.process.exit_code
            if exit_code is not None:
                result = replace(result, broken=(*result.broken, f"the server has ended with {exit_code}"))
            report(result)
            results.append(result)
            if exit_code is not None:
                return results, exit_code
        try:
            return results, server.process.stop()
        except ServerError:
            return results, 1


def _warmed_up(target: str, seed: int) -> list[Question]:
    """Return questions with their answers, after calls that fill the batches, so that memory is what it will be."""
    questions = learn_answers(target, wire.translate_requests(seed, count=_NUM_QUESTIONS, texts=1))
    with ThreadPoolExecutor(_NUM_WARM_UP_CALLS) as pool:
        large = wire.translate_requests(seed, count=_NUM_WARM_UP_CALLS, texts=_NUM_WARM_UP_TEXTS)
        list(pool.map(lambda request: learn_answers(target, [request]), large))
    with Bystanders(target, questions) as bystanders:
        for _ in range(_NUM_QUESTIONS):
            bystanders.wait_for_answers()
    return questions


def run_fault(fault: Fault, server: ChaosServer, scale: Scale, questions: Sequence[Question]) -> Result:
    """Inject a fault among bystanders and return what came of it; a server that ends of it is a result, too."""
    process = server.process
    before = after = footprint(process.pid)
    began_s = time.monotonic()
    bystanders = Bystanders(process.target, questions)
    stage = Stage(server=server, scale=scale, bystanders=bystanders, questions=questions)
    seen, recovered_s, left = "", None, {}
    try:
        with bystanders:
            bystanders.wait_for_answers()
            seen = fault.run(stage)
            recovered_s = _recovery_s(process, questions[0])
            if recovered_s is not None:
                bystanders.wait_for_answers()
        left = _left(process)
        after = _settled(process, before, max_file_growth=fault.limits.max_file_growth)
    except ServerError as error:
        stage.broken.append(str(error))
    except OSError as error:  # of the metrics' port, or no port is free any more
        stage.broken.append(f"the server, or this machine, is out of reach: {error}")
    translations = bystanders.translations
    in_batch = Counter(reply.status for reply in translations if reply.status in fault.statuses_in_batch)
    return Result(
        fault=fault,
        hits=stage.hits + in_batch,
        seen=seen,
        broken=tuple(stage.broken),
        translations=tuple(translations),
        checks=tuple(bystanders.looks),
        recovered_s=recovered_s,
        left=left,
        rss_growth_mb=after.rss_mb - before.rss_mb,
        thread_growth=after.num_threads - before.num_threads,
        file_growth=after.num_fds - before.num_fds,
        began_s=began_s,
        elapsed_s=time.monotonic() - began_s,
    )


def _recovery_s(server: ServerProcess, question: Question) -> float | None:
    """Return after how long a new connection gets right answers; None if it does not for long, or the server ended."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < _RECOVERY_TIMEOUT_S and server.exit_code is None:
        with Client(server.target) as client:
            health = client.check(timeout_s=_RECOVERY_CALL_S)
            reply = question.judge(client.translate(question.request, timeout_s=_RECOVERY_CALL_S))
        if health.status == reply.status == "OK":
            return time.monotonic() - began_s
        time.sleep(_POLL_S)
    return None


def _left(server: ServerProcess) -> dict[str, float]:
    """Return gauges of work that do not come to rest once there are no callers, or that the server is not ready."""
    until_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        samples = server.samples()
        left = work_left(samples)
        if samples.get("mt_ready") != 1:
            left["mt_ready"] = samples.get("mt_ready", 0.0)
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(_POLL_S)


def _settled(server: ServerProcess, before: Footprint, *, max_file_growth: int) -> Footprint:
    """Return what the process is like once the connections of former callers are closed, or after a while."""
    until_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        facts = footprint(server.pid)
        if facts.num_fds <= before.num_fds + max_file_growth or time.monotonic() > until_s:
            return facts
        time.sleep(_POLL_S)
