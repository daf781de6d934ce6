"""All faults, one after the other: on one server, on another one after a server has ended, or on one of their own."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil

from loadtests import wire
from loadtests.sampler import footprint, work_left
from loadtests.stress.callers import Bystanders, Client, Question, learn_answers
from loadtests.stress.chaos.fault import MODES, Fault, Result, Stage
from loadtests.stress.chaos.server import ChaosServer, chaos_server
from loadtests.stress.server import poll
from loadtests.target import ServerError, ServerProcess

_NUM_QUESTIONS: Final = 8
_NUM_WARM_UP_CALLS: Final = 4
_NUM_WARM_UP_TEXTS: Final = 48
_RECOVERY_TIMEOUT_S: Final = 30.0
_RECOVERY_CALL_S: Final = 5.0
_SETTLE_TIMEOUT_S: Final = 10.0


def run_faults(
    faults: Sequence[Fault], mode: str, *, output: Path, models: Path, seed: int, report: Callable[[Result], None]
) -> tuple[list[Result], list[int]]:
    """Inject faults and report each as soon as it is over; return what came of them, and how their servers ended.

    They share a server as long as it runs; one that wants an environment gets a server of its own.

    Raises:
        ServerError: if a server does not start, or does not answer before anything was done to it.
    """
    left, results, exit_codes = deque(faults), list[Result](), list[int]()
    while left:
        server_output = output / f"server-{len(exit_codes) + 1}"
        environment = left[0].environment(server_output) if left[0].environment else {}
        with chaos_server(server_output, models=models, environment=environment) as server:
            questions = _warmed_up(server.process.target, seed)
            while left and server.process.exit_code is None:
                fault = left.popleft()
                results.append(run_fault(fault, server, mode, questions))
                report(results[-1])
                if fault.environment or (left and left[0].environment):
                    break
            exit_codes.append(_stopped(server.process))
    return results, exit_codes


def _stopped(server: ServerProcess) -> int:
    """Return what a server has ended with, or ends with now."""
    try:
        return server.stop() if server.exit_code is None else server.exit_code
    except ServerError:
        return 1


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


def run_fault(fault: Fault, server: ChaosServer, mode: str, questions: Sequence[Question]) -> Result:
    """Inject a fault among bystanders and return what came of it; a server that ends of it is a result, too."""
    process = server.process
    before = after = footprint(process.pid)
    began_s = time.monotonic()
    bystanders = Bystanders(process.target, questions)
    amount, seconds = fault.amounts[MODES.index(mode)], fault.seconds[MODES.index(mode)]
    stage = Stage(
        server=server,
        amount=amount,
        seconds=seconds,
        bystanders=bystanders,
        questions=questions,
        before=process.samples(),
    )
    limits = fault.limits(seconds)
    seen, recovered_s, left = "", None, dict[str, float]()
    try:
        with bystanders:
            bystanders.wait_for_answers()
            seen = fault.run(stage)
            recovered_s = _recovery_s(process, questions[0])
            if recovered_s is not None:
                bystanders.wait_for_answers()
        left = poll(lambda: _left(process), lambda left: not left, timeout_s=_SETTLE_TIMEOUT_S)
        most_files = before.num_fds + limits.max_file_growth  # once the connections of former callers are closed
        after = poll(lambda: footprint(process.pid), lambda now: now.num_fds <= most_files, timeout_s=_SETTLE_TIMEOUT_S)
    except ServerError as error:
        stage.broken.append(str(error))
    except (OSError, psutil.Error) as error:  # of the metrics' port, of a process, or no port is free any more
        stage.broken.append(f"the server, or this machine, is out of reach: {error}")
    if process.exit_code is not None:
        stage.broken.append(f"the server has ended with {process.exit_code}")
    translations = bystanders.translations
    in_batch = Counter(reply.status for reply in translations if reply.status in fault.statuses_in_batch)
    return Result(
        fault=fault,
        limits=limits,
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

    def is_well() -> bool:
        with Client(server.target) as client:
            health = client.check(timeout_s=_RECOVERY_CALL_S)
            reply = question.ask(client, timeout_s=_RECOVERY_CALL_S)
        return health.status == reply.status == "OK"

    recovered = poll(is_well, lambda well: well or server.exit_code is not None, timeout_s=_RECOVERY_TIMEOUT_S)
    return time.monotonic() - began_s if recovered else None


def _left(server: ServerProcess) -> dict[str, float]:
    """Return gauges of work that are not 0, and of readiness if it is not 1."""
    samples = server.samples()
    is_ready = samples.get("mt_ready", 0.0)
    return {**work_left(samples), **({} if is_ready == 1 else {"mt_ready": is_ready})}
