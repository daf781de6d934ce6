"""Two servers under the same load, one after the other: which answers sooner, and which has more capacity?"""

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import grpc
from dragoman.v1 import translation_pb2 as pb
from tqdm import tqdm

from loadtests.capacity import Run, SearchPlan, System, find_capacities, run
from loadtests.generator import Generator
from loadtests.machine import num_cores
from loadtests.peers.batching import BatchingSettings
from loadtests.peers.comparison import alternating
from loadtests.peers.load_report import Comparison, LoadPoint, Trial, agreement_of, trial_line
from loadtests.peers.models import served_models
from loadtests.peers.systems import ModelFiles, Peer
from loadtests.records import Summary
from loadtests.sampler import process_tree
from loadtests.slo import Slo
from loadtests.target import SERVE, ServerProcess, Target
from loadtests.wire import TRANSLATE
from loadtests.workload import Workload

Side = Literal["ours", "theirs"]

_SIDES: Final[tuple[Side, Side]] = ("ours", "theirs")
_TUNED_LOADS: Final = (0.3, 0.9)
"""Shares of the other's throughput at which its set-ups are compared: alone, and with company."""
_TUNED: Final[Mapping[str, Sequence[Any]]] = {
    "max_wait_s": (0.0, 0.002, 0.005, 0.01),
    "max_batch_size": (8, 16, 32, 64),
}
"""What is tried of each setting."""
_START_S: Final = 120.0
_NUM_CALLERS: Final = 8
_PATIENCE_S: Final = 120.0
"""Of callers who want to know what is answered, not how quickly."""

Start = Callable[[BatchingSettings], AbstractContextManager[System]]
"""Starts the other server at one set-up."""


class DisagreementError(Exception):
    """Both servers do not do the same work, or one has no capacity, so that a comparison says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly is measured; durations are those of one run that count."""

    run_s: float
    """Of a run at a load."""

    trial_s: float
    """Of a run at a set-up of the other server that is tried."""

    num_repetitions: int
    loads: tuple[float, ...]
    """Shares of the other's capacity."""

    search: SearchPlan
    seed: int = 1

    def stretched(self, factor: float) -> "Plan":
        """Return a plan with runs so many times as long, for a model that answers fewer calls a second."""
        found = self.search
        search = replace(found, closed_loop_s=factor * found.closed_loop_s, probe_s=factor * found.probe_s)
        return replace(self, run_s=factor * self.run_s, trial_s=factor * self.trial_s, search=search)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
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

    settings: BatchingSettings | None
    """Of the other server; None: the best of some trials."""


class PausedServer:
    """A server that runs only while load is offered to it; stopped (SIGSTOP) it takes nothing from the other."""

    def __init__(self, process: ServerProcess, workload: Workload) -> None:
        """Stop it; it must be ready."""
        self.pids = process_tree(process.pid)
        self._generator = Generator(target=Target(address=process.target), workload=workload)
        self._stop()

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Let it run under so many calls a second."""
        with self._running():
            return self._generator.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Let it run for callers who wait."""
        with self._running():
            return self._generator.throughput_per_s(duration_s=duration_s)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        """Let it answer so many requests; grpc.RpcError if one fails."""
        calls = itertools.islice(self._generator.workload.calls(0), count)
        with (
            self._running(),
            grpc.insecure_channel(self._generator.target.address) as channel,
            ThreadPoolExecutor(_NUM_CALLERS) as pool,
        ):
            method = channel.unary_unary(TRANSLATE, response_deserializer=pb.TranslateResponse.FromString)
            ask = partial(method, timeout=_PATIENCE_S, wait_for_ready=True)
            return list(pool.map(ask, [call.messages[0] for call in calls]))

    @contextmanager
    def _running(self) -> Iterator[None]:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        """Return once no thread of its first process runs, or if it has ended."""
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pids[0], os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def _serving(
    log: Path, flags: Sequence[str], workload: Workload, module: Sequence[str] = SERVE
) -> Iterator[PausedServer]:
    with ServerProcess(log, *flags, module=module) as process:
        process.wait_until_ready(timeout_s=_START_S)
        yield PausedServer(process, workload)


def our_server(files: ModelFiles, workload: Workload, *, log: Path) -> AbstractContextManager[PausedServer]:
    """Serve a model as an operator would, with all defaults; ServerError if that does not start."""
    return _serving(log, ["--models", str(served_models(files).resolve())], workload)


def their_server(
    files: ModelFiles, workload: Workload, peer: Peer, settings: BatchingSettings, *, log: Path
) -> AbstractContextManager[PausedServer]:
    """Serve a model with another system; ServerError if that does not start."""
    flags = ["--port", "0", "--system", peer, "--files", str(files.directory.resolve()), "--settings", settings.name]
    return _serving(log, flags, workload, ("loadtests", "peers", "serve"))


def compare(task: LoadTask) -> Comparison:
    """Start both servers, set up the other one, ask both the same, search their capacities, compare at some loads.

    Raises:
        ServerError: if a server does not start.
        DisagreementError: if both do not do the same work, or one does not hold the objective at any rate.
        TimeoutError: if one stops answering.
        RuntimeError: if calls of callers who wait fail.
    """
    with tqdm(desc=f"{task.model}, {task.peer}", unit="run", disable=None, leave=False) as bar:

        def advance(*_: object) -> None:
            bar.update()

        def start(settings: BatchingSettings) -> AbstractContextManager[PausedServer]:
            return their_server(task.files, task.workload, task.peer, settings, log=task.directory / "trial.log")

        trials = []
        for trial in tune(start, task.peer, task.plan, num_cores=num_cores()) if task.settings is None else ():
            trials.append(trial)
            bar.write(trial_line(trial, peer=task.peer, model=task.model))
            bar.update()
        settings = task.settings or best_settings(trials)
        with (
            our_server(task.files, task.workload, log=task.directory / "ours.log") as ours,
            their_server(task.files, task.workload, task.peer, settings, log=task.directory / "theirs.log") as theirs,
        ):
            systems: dict[Side, PausedServer] = {"ours": ours, "theirs": theirs}
            answers = [server.answers(count=task.num_agreeing) for server in systems.values()]  # warms them up, too
            agreement = agreement_of(*answers, has_meaning=task.model == "shipped")
            if not agreement.holds:
                raise DisagreementError(f"both do not do the same work on the {task.model} model: {agreement}")
            capacities = find_capacities(systems, task.slo, task.plan.search, note=advance)
            if not all(capacity.per_s for capacity in capacities.values()):
                raise DisagreementError(f"{task.slo} holds at no rate that was tried; give another --slo")
            per_s = capacities["theirs"].per_s
            points = [measure_load(systems, load, per_s, task.plan, note=advance) for load in task.plan.loads]
    return Comparison(
        model=task.model,
        peer=task.peer,
        objective=str(task.slo),
        settings=settings.name,
        trials=tuple(trials),
        agreement=agreement,
        our_capacity=capacities["ours"],
        their_capacity=capacities["theirs"],
        points=tuple(points),
    )


def tune(start: Start, peer: Peer, plan: Plan, *, num_cores: int) -> Iterator[Trial]:
    """Yield trials of set-ups one feature after another, each from the best so far; `best_settings` chooses.

    The threads by what callers who wait get; the size of batches and the waiting by p95 at a low and a high load.
    """
    layouts = [(num_cores, 1), (1, num_cores)] if peer == "ctranslate2" and num_cores > 1 else [(1, num_cores)]
    tried = []
    for streams, threads in layouts:
        settings = BatchingSettings(num_streams=streams, num_threads=threads)
        with start(settings) as system:
            tried.append((system.throughput_per_s(duration_s=plan.trial_s), settings))
        yield Trial(settings=settings.name, runs=(), closed_loop_per_s=tried[-1][0])
    most_per_s, best = max(tried, key=lambda pair: pair[0])
    trials: dict[str, Trial] = {}
    for name, values in _TUNED.items():
        for settings in [replace(best, **{name: value}) for value in values]:
            if settings.name in trials:
                continue
            with start(settings) as system:
                runs = [run(system, load * most_per_s, plan.trial_s, plan.seed) for load in _TUNED_LOADS]
            trials[settings.name] = Trial(settings=settings.name, runs=tuple(runs))
            yield trials[settings.name]
        best = best_settings(list(trials.values()))


def best_settings(trials: Sequence[Trial]) -> BatchingSettings:
    """Return the set-up with the least p95 on the whole, each load counting alike: by the product."""
    compared = [trial for trial in trials if trial.runs]
    best = min(compared, key=lambda trial: math.prod(one.p95_ms for one in trial.runs))
    return BatchingSettings.parse(best.settings)


def measure_load(
    systems: Mapping[Side, System],
    load: float,
    capacity_per_s: float,
    plan: Plan,
    *,
    note: Callable[[], None] = lambda: None,
) -> LoadPoint:
    """Offer both the same, arrival by arrival."""
    runs: dict[Side, list[Run]] = {side: [] for side in _SIDES}
    rate_per_s = load * capacity_per_s
    for repetition, side in alternating(_SIDES, plan.num_repetitions):
        runs[side].append(run(systems[side], rate_per_s, plan.run_s, plan.seed + repetition))
        note()
    return LoadPoint(load=load, rate_per_s=rate_per_s, ours=tuple(runs["ours"]), theirs=tuple(runs["theirs"]))
