"""All faults, one after the other: on one server, on another one after a server has ended, or on one of their own."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadtests import wire
from loadtests.chaos.bystanders import Bystanders, Question
from loadtests.chaos.fault import Fault
from loadtests.chaos.scale import Scale
from loadtests.chaos.trial import learn_answers, run_trial
from loadtests.chaos.venue import Venue, open_venue
from loadtests.chaos.verdict import TrialResult
from loadtests.target import ServerError

_NUM_QUESTIONS: Final = 8
_NUM_WARM_UP_CALLS: Final = 4
_NUM_WARM_UP_TEXTS: Final = 48
_SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of all faults."""

    results: Sequence[TrialResult]
    exit_codes: Sequence[int]
    """Of the servers that were still there to be ended; 0: it drained and ended well."""


def run_faults(
    faults: Sequence[Fault], scale: Scale, *, output: Path, models: Path, report: Callable[[TrialResult], None]
) -> Run:
    """Do faults and report each as soon as it is over.

    Raises:
        ServerError: if a server does not start, or does not answer before anything was done to it.
    """
    results: list[TrialResult] = []
    exit_codes: list[int] = []
    left = list(faults)
    while left:
        batch = _on_one_server(left)
        environment = batch[0].environment() if batch[0].environment else {}
        server_output = output / f"server-{len(exit_codes) + 1}"
        done, exit_code = _run_on_server(
            batch, scale, output=server_output, models=models, environment=environment, report=report
        )
        results += done
        exit_codes.append(exit_code)
        left = left[len(done) :]
    return Run(results=results, exit_codes=exit_codes)


def _on_one_server(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first faults that can share a server: those that want none of their own, or one that does."""
    if faults[0].environment:
        return [faults[0]]
    alone = next((index for index, fault in enumerate(faults) if fault.environment), len(faults))
    return list(faults[:alone])


def _run_on_server(
    faults: Sequence[Fault],
    scale: Scale,
    *,
    output: Path,
    models: Path,
    environment: Mapping[str, str],
    report: Callable[[TrialResult], None],
) -> tuple[list[TrialResult], int]:
    """Return what came of the faults up to one of which the server ended, and the server's exit code."""
    results = []
    with ExitStack() as stack:
        venue = stack.enter_context(open_venue(output, models=models, environment=environment))
        questions = _warmed_up(venue)
        for fault in faults:
            result = run_trial(fault, venue, scale, questions)
            exit_code = venue.server.exit_code
            if exit_code is not None:
                result = replace(result, broken=(*result.broken, f"the server has ended with {exit_code}"))
            report(result)
            results.append(result)
            if exit_code is not None:
                return results, exit_code
        return results, _stopped(venue)


def _stopped(venue: Venue) -> int:
    try:
        return venue.server.stop()
    except ServerError:
        return 1


def _warmed_up(venue: Venue) -> list[Question]:
    """Return questions with their answers, after calls that fill the batches, so that memory is what it will be."""
    target = venue.server.target
    questions = learn_answers(target, wire.translate_requests(_SEED, count=_NUM_QUESTIONS, texts=1))
    with ThreadPoolExecutor(_NUM_WARM_UP_CALLS) as pool:
        large = wire.translate_requests(_SEED, count=_NUM_WARM_UP_CALLS, texts=_NUM_WARM_UP_TEXTS)
        list(pool.map(lambda request: learn_answers(target, [request]), large))
    with Bystanders(target, questions) as bystanders:
        for _ in range(_NUM_QUESTIONS):
            bystanders.wait_for_answers()
    return questions
