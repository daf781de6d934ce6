"""One rival on one model: both servers started, set up, asked the same, searched and compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from loadtests.capacity.search import find_capacities
from loadtests.machine import num_cores
from loadtests.peers.model_files import ModelFiles
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.peers.under_load.agreement import agreement
from loadtests.peers.under_load.lines import trial_line
from loadtests.peers.under_load.results import Agreement, Rivalry, Trial
from loadtests.peers.under_load.rounds import Plan, Side, best_settings, measure_load, tune
from loadtests.peers.under_load.servers import PausedServer, our_server, their_server
from loadtests.slo import Slo
from loadtests.workload import Workload


class DisagreementError(Exception):
    """Both servers do not do the same work, so that a comparison of their speed says nothing."""


class NoCapacityError(Exception):
    """A server does not hold the objective at any rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be compared."""

    model: str
    peer: Peer
    plan: Plan
    slo: Slo
    files: ModelFiles
    workload: Workload
    directory: Path
    """For logs."""

    num_agreeing: int
    """Texts that both translate to see whether they do the same work."""

    has_meaning: bool
    """Whether translations can be compared word by word."""

    settings: BatchingSettings | None
    """Of the rival; None: the best of some trials."""


def compare(task: Task) -> Rivalry:
    """Measure.

    Raises:
        ServerError: if a server does not start.
        DisagreementError: if both do not do the same work.
        NoCapacityError: if one does not hold the objective at any rate.
        TimeoutError: if one stops answering.
        RuntimeError: if calls fail that wait for each other.
    """
    with tqdm(desc=f"{task.model}, {task.peer}", unit="run", disable=None, leave=False) as bar:
        trials = _trials(task, bar)
        settings = task.settings or best_settings(trials)
        with (
            our_server(task.files, task.workload, log=task.directory / "ours.log") as ours,
            their_server(task.files, task.workload, task.peer, settings, log=task.directory / "theirs.log") as theirs,
        ):
            found = _agreement(task, ours, theirs)

            def note(*_: object) -> None:
                bar.update()

            contenders: dict[Side, PausedServer] = {"ours": ours, "theirs": theirs}
            capacities = find_capacities(contenders, task.slo, task.plan.search, note=note)
            if not all(capacity.per_s for capacity in capacities.values()):
                raise NoCapacityError(f"{task.slo} holds at no rate that was tried; give another --slo")
            points = []
            for load in task.plan.loads:
                points.append(measure_load(contenders, load, capacities["theirs"].per_s, task.plan))
                bar.update(2 * task.plan.num_repetitions)
    return Rivalry(
        model=task.model,
        peer=task.peer,
        objective=str(task.slo),
        settings=settings.name,
        trials=tuple(trials),
        agreement=found,
        our_capacity=capacities["ours"],
        their_capacity=capacities["theirs"],
        points=tuple(points),
    )


def _trials(task: Task, bar: "tqdm[NoReturn]") -> list[Trial]:
    if task.settings is not None:
        return []

    @contextmanager
    def start(settings: BatchingSettings) -> Iterator[PausedServer]:
        log = task.directory / "trial.log"
        with their_server(task.files, task.workload, task.peer, settings, log=log) as server:
            yield server

    trials = []
    for trial in tune(start, task.peer, task.plan, num_cores=num_cores()):
        trials.append(trial)
        bar.write(trial_line(trial, peer=task.peer, model=task.model))
        bar.update()
    return trials


def _agreement(task: Task, ours: PausedServer, theirs: PausedServer) -> Agreement:
    """Have both translate the same; this warms them up, too."""
    count = task.num_agreeing
    found = agreement(ours.answers(count=count), theirs.answers(count=count), has_meaning=task.has_meaning)
    if not found.holds:
        raise DisagreementError(f"both do not do the same work on the {task.model} model: {found}")
    return found
