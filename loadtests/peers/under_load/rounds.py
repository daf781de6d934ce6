"""The order of a comparison: tune the rival, find what both bear, offer both the same, in turn."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Literal

from loadtests.capacity.search import Run, SearchPlan, System, run
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.peers.under_load.results import LoadPoint, Trial

Side = Literal["ours", "theirs"]

_SIDES: Final[tuple[Side, Side]] = ("ours", "theirs")
_TUNED_LOADS: Final = (0.3, 0.9)
"""Shares of the rival's throughput at which set-ups are compared: alone, and with company."""


Start = Callable[[BatchingSettings], AbstractContextManager[System]]
"""Starts the rival at one set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly is measured; durations are those of one run that count."""

    run_s: float
    """Of a run at a load."""

    probe_s: float
    """Of a run of a capacity search."""

    trial_s: float
    """Of a run at a set-up of the rival that is tried."""

    num_repetitions: int
    loads: tuple[float, ...]
    """Shares of the rival's capacity."""

    tries: int = 1
    """How often a rate is probed until it holds, before it counts as too high."""

    resolution: float = 0.05
    """Share by which a capacity may be too low."""

    seed: int = 1

    @property
    def search(self) -> SearchPlan:
        """How the capacity is searched."""
        return SearchPlan(
            closed_loop_s=self.trial_s,
            probe_s=self.probe_s,
            tries=self.tries,
            resolution=self.resolution,
            seed=self.seed,
        )

    def stretched(self, factor: float) -> "Plan":
        """Return a plan with runs so many times as long, for a model that answers fewer calls a second."""
        return replace(self, run_s=factor * self.run_s, probe_s=factor * self.probe_s, trial_s=factor * self.trial_s)


def tune(start: Start, peer: Peer, plan: Plan, *, num_cores: int) -> Iterator[Trial]:
    """Yield trials of set-ups one feature after another, each from the best so far; `best_settings` chooses.

    The threads by what callers who wait get; the size of batches and the waiting by p95 at a low and a high load.
    """
    layouts = [(num_cores, 1), (1, num_cores)] if peer == "ctranslate2" and num_cores > 1 else [(1, num_cores)]
    tried = []
    for streams, threads in layouts:
        settings = BatchingSettings(num_streams=streams, num_threads=threads)
        with start(settings) as rival:
            tried.append((rival.throughput_per_s(duration_s=plan.trial_s), settings))
        yield Trial(settings=settings.name, runs=(), closed_loop_per_s=tried[-1][0])
    most_per_s, best = max(tried, key=lambda pair: pair[0])
    trials: list[Trial] = []
    for vary in (_with_other_waits, _with_other_sizes):
        names = {trial.settings for trial in trials}
        for settings in vary(best):
            if settings.name not in names:
                trials.append(_trial(start, settings, most_per_s, plan))
                yield trials[-1]
        best = best_settings(trials)


def _with_other_waits(settings: BatchingSettings) -> list[BatchingSettings]:
    return [replace(settings, max_wait_s=wait_s) for wait_s in (0.0, 0.002, 0.005, 0.01)]


def _with_other_sizes(settings: BatchingSettings) -> list[BatchingSettings]:
    return [replace(settings, max_batch_size=size) for size in (8, 16, 32, 64)]


def best_settings(trials: Sequence[Trial]) -> BatchingSettings:
    """Return the set-up with the least p95 on the whole, each load counting alike: by the product."""
    compared = [trial for trial in trials if trial.runs]
    return BatchingSettings.parse(min(compared, key=_latency_product).settings)


def _latency_product(trial: Trial) -> float:
    return math.prod(one.p95_ms for one in trial.runs)


def _trial(start: Start, settings: BatchingSettings, most_per_s: float, plan: Plan) -> Trial:
    with start(settings) as rival:
        runs = [run(rival, load * most_per_s, plan.trial_s, plan.seed) for load in _TUNED_LOADS]
    return Trial(settings=settings.name, runs=tuple(runs))


def measure_load(contenders: Mapping[Side, System], load: float, capacity_per_s: float, plan: Plan) -> LoadPoint:
    """Offer both the same, arrival by arrival, forwards and backwards by turns, so that the machine favours neither."""
    runs: dict[Side, list[Run]] = {side: [] for side in _SIDES}
    rate_per_s = load * capacity_per_s
    for repetition in range(plan.num_repetitions):
        for side in _SIDES if repetition % 2 == 0 else reversed(_SIDES):
            runs[side].append(run(contenders[side], rate_per_s, plan.run_s, plan.seed + repetition))
    return LoadPoint(load=load, rate_per_s=rate_per_s, ours=tuple(runs["ours"]), theirs=tuple(runs["theirs"]))
