from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadtests.capacity import SearchPlan
from loadtests.peers.batching import BatchingSettings
from loadtests.peers.load_comparison import Plan, Side, best_settings, measure_load, tune
from loadtests.peers.load_report import Trial
from loadtests.peers.systems import Peer
from tests.unit.loadtests.fake_system import FakeSystem

_PLAN = Plan(
    run_s=10.0, trial_s=10.0, num_repetitions=3, loads=(0.6,), search=SearchPlan(closed_loop_s=10.0, probe_s=10.0)
)
_Log = list[tuple[str, float, int]]


def _systems(log: _Log) -> dict[Side, FakeSystem]:
    return {
        "ours": FakeSystem("ours", log, capacity_per_s=150.0, service_s=0.02),
        "theirs": FakeSystem("theirs", log, capacity_per_s=100.0, service_s=0.05),
    }


def test_both_get_the_same_arrivals_in_turn_forwards_and_backwards() -> None:
    log: _Log = []

    point = measure_load(_systems(log), 0.6, 100.0, _PLAN)

    assert log == [
        ("ours", 60.0, 1),
        ("theirs", 60.0, 1),
        ("theirs", 60.0, 2),
        ("ours", 60.0, 2),
        ("ours", 60.0, 3),
        ("theirs", 60.0, 3),
    ]
    assert [point.p50_ratio, point.p95_ratio] == pytest.approx([0.4, 0.4])


def _tune(peer: Peer, *, num_cores: int) -> tuple[list[Trial], list[BatchingSettings]]:
    """Trials of a server that likes two streams, batches of 16 and no wait, and what was started."""
    asked: list[BatchingSettings] = []

    @contextmanager
    def start(settings: BatchingSettings) -> Iterator[FakeSystem]:
        asked.append(settings)
        capacity_per_s = 100.0 if settings.num_streams == 2 else 50.0
        service_s = 0.02 + settings.max_wait_s + abs(settings.max_batch_size - 16) / 1000
        yield FakeSystem(settings.name, [], capacity_per_s=capacity_per_s, service_s=service_s)

    return list(tune(start, peer, _PLAN, num_cores=num_cores)), asked


def test_the_other_server_is_set_up_as_it_does_best() -> None:
    trials, _ = _tune("ctranslate2", num_cores=2)

    assert best_settings(trials).name == "2x1,b16,w0"
    names = [trial.settings for trial in trials if trial.runs]
    assert len(names) == len(set(names)) == 7
    assert [trial.closed_loop_per_s for trial in trials[:2]] == [100.0, 50.0]


def test_transformers_has_one_stream_only() -> None:
    _, asked = _tune("transformers", num_cores=4)

    assert {(settings.num_streams, settings.num_threads) for settings in asked} == {(1, 4)}
