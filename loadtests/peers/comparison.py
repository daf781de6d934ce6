"""Runs one case on every system: finds each one's best set-up, then measures these in turn, again and again."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol, TypeVar

from loadtests.peers.cases import Case, Mode
from loadtests.peers.sentences import share_of_equal
from loadtests.peers.systems import Output, Peer, Precision, SystemSettings
from loadtests.peers.workers import Task, TaskResult
from loadtests.records import percentile

_MANY_SOURCES: Final = 64
"""Above so many at once, systems cut the work into batches of a size that suits them."""
_BATCH_SIZES: Final = (16, 32, 64)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly is measured."""

    mode: Mode
    num_repetitions: int
    thread_counts: tuple[int, ...]
    """Cores a system may use; each is compared by itself."""
    isas: tuple[str, ...]
    """Instruction sets that CTranslate2 is tried with, the empty one for its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which of our precisions is compared with what."""

    ours: Precision
    peer: Peer
    theirs: Precision

    @property
    def systems(self) -> tuple[tuple[Peer, Precision], tuple[Peer, Precision]]:
        """Ours and theirs."""
        return ("dragoman", self.ours), (self.peer, self.theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One try of a set-up while the best was sought."""

    settings: SystemSettings
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All repetitions of one set-up in a case."""

    settings: SystemSettings
    elapsed_s: tuple[float, ...]
    """Of each repetition: all calls together."""
    latencies_s: tuple[float, ...]
    """Of each call of all repetitions."""
    outputs: tuple[Output, ...]
    """Of the last repetition."""
    bleu: float | None
    """Of the outputs; None: there are no references."""

    @property
    def num_target_tokens(self) -> int:
        """Of one repetition, EOS counted."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second, by the median repetition."""
        return self.num_target_tokens / median(self.elapsed_s)

    def latency_s(self, share: float) -> float:
        """Return a percentile of the latency of a call; the share is from 0 to 1."""
        return percentile(self.latencies_s, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """Ours against theirs in one case, each at its best with as many cores."""

    case: Case
    num_threads: int
    """Cores each was allowed."""
    ours: Measurement
    theirs: Measurement

    @property
    def bleu_delta(self) -> float | None:
        """How much better ours translates, in points of BLEU; None without references."""
        if self.ours.bleu is None or self.theirs.bleu is None:
            return None
        return self.ours.bleu - self.theirs.bleu

    @property
    def identical(self) -> float:
        """Share of the sources to which both say the same, token for token."""
        ours, theirs = ([output.token_ids for output in side.outputs] for side in (self.ours, self.theirs))
        return share_of_equal(ours, theirs)

    @property
    def ratio(self) -> float:
        """Above 1 if ours is faster: of tokens a second, or of the median latency if calls come one by one."""
        if self.case.call_size == 1:
            return self.theirs.latency_s(0.5) / self.ours.latency_s(0.5)
        return self.ours.tokens_per_s / self.theirs.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Everything measured in a case."""

    case: Case
    trials: tuple[Trial, ...]
    measurements: tuple[Measurement, ...]
    pairs: tuple[PairResult, ...]


class Runner(Protocol):
    """Does tasks, one at a time: the workers of a model, or a fake."""

    def run(self, task: Task) -> TaskResult:
        """Translate under a clock."""


Judge = Callable[[Sequence[Output], Sequence[str]], float]
"""BLEU of outputs and references."""


def compare(runner: Runner, case: Case, pairings: Sequence[Pairing], plan: Plan, judge: Judge) -> CaseResult:
    """Run a case on all systems of the pairings, each at the set-up that did best in a trial."""
    systems = list(dict.fromkeys(system for pairing in pairings for system in pairing.systems))
    thread_counts = plan.thread_counts if case.kind == "speed" else plan.thread_counts[-1:]
    trials = _try_all(runner, case, systems, plan)
    best = {(system, threads): _best(trials, system, threads) for system in systems for threads in thread_counts}
    runs: dict[SystemSettings, list[TaskResult]] = {settings: [] for settings in best.values()}
    for _, settings in alternating(list(runs), 1 if case.kind == "agreement" else plan.num_repetitions):
        runs[settings].append(_run(runner, case, settings))
    measurements = {settings: _measurement(case, settings, results, judge) for settings, results in runs.items()}
    pairs = [
        PairResult(
            case=case,
            num_threads=threads,
            ours=measurements[best[pairing.systems[0], threads]],
            theirs=measurements[best[pairing.systems[1], threads]],
        )
        for pairing in pairings
        for threads in thread_counts
    ]
    return CaseResult(case=case, trials=tuple(trials), measurements=tuple(measurements.values()), pairs=tuple(pairs))


def setups(case: Case, peer: Peer, precision: Precision, plan: Plan) -> list[SystemSettings]:
    """Return every set-up of a system that is worth a try in a case, up to the most threads of the plan."""
    max_threads = plan.thread_counts[-1]
    if case.kind == "agreement":
        return [SystemSettings(peer=peer, precision=precision, num_threads=max_threads)]
    has_streams = peer in ("dragoman", "ctranslate2") and case.call_size > 1
    counts = sorted({max_threads, *(2**power for power in range(max_threads.bit_length()))})
    return [
        SystemSettings(
            peer=peer, precision=precision, num_streams=streams, num_threads=threads, batch_size=size, isa=isa
        )
        for streams, threads in itertools.product(counts if has_streams else (1,), counts)
        if streams * threads <= max_threads
        for isa in (plan.isas if peer == "ctranslate2" else ("",))
        for size in _batch_sizes(case.call_size, peer, streams, plan.mode)[: 1 if isa else None]
    ]


def _batch_sizes(call_size: int, peer: Peer, num_streams: int, mode: Mode) -> list[int]:
    share = -(-call_size // num_streams)
    if call_size > _MANY_SOURCES:
        return list(_BATCH_SIZES[::2] if mode == "short" else _BATCH_SIZES)
    if mode == "short":
        return [share]
    if peer == "dragoman":  # deals shares by itself
        return sorted({min(16, share), share})
    return sorted({share, call_size})


def _try_all(runner: Runner, case: Case, systems: Sequence[tuple[Peer, Precision]], plan: Plan) -> list[Trial]:
    """Run every set-up once, after one more run to warm up what was not loaded yet."""
    trials, warm = [], set[tuple[object, ...]]()
    for peer, precision in systems:
        for settings in setups(case, peer, precision, plan):
            if settings.loaded_as not in warm:
                _run(runner, case, settings)
                warm.add(settings.loaded_as)
            trials.append(Trial(settings=settings, elapsed_s=_run(runner, case, settings).elapsed_s))
    return trials


def _best(trials: Sequence[Trial], system: tuple[Peer, Precision], max_threads: int) -> SystemSettings:
    """Return the fastest set-up that keeps at most so many cores busy."""
    allowed = [
        trial
        for trial in trials
        if (trial.settings.peer, trial.settings.precision) == system and trial.settings.total_threads <= max_threads
    ]
    return min(allowed, key=lambda trial: trial.elapsed_s).settings


def alternating(sides: Sequence[T], num_repetitions: int) -> Iterator[tuple[int, T]]:
    """Yield all sides in each repetition, forwards and backwards by turns: a change of the machine meets all alike."""
    for repetition in range(num_repetitions):
        for side in sides if repetition % 2 == 0 else reversed(sides):
            yield repetition, side


def _measurement(case: Case, settings: SystemSettings, runs: Sequence[TaskResult], judge: Judge) -> Measurement:
    outputs = runs[-1].outputs
    return Measurement(
        settings=settings,
        elapsed_s=tuple(run.elapsed_s for run in runs),
        latencies_s=tuple(latency_s for run in runs for latency_s in run.latencies_s),
        outputs=outputs,
        bleu=judge(outputs, case.references) if case.references else None,
    )


def _run(runner: Runner, case: Case, settings: SystemSettings) -> TaskResult:
    task = Task(settings=settings, sources=case.sources, search=case.search, sources_per_call=case.sources_per_call)
    return runner.run(task)
