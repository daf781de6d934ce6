"""Two replicas with one thread each, over gated models and a manual clock."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import SearchConfig, SegmentResult
from dragoman_service.errors import ConfigError, DrainingError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.replicas import ReplicaScheduler, open_replicas
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.background_loop import background_loop
from tests.fakes import CACHE_BYTES, GatedModel, ManualClock, ToyModel, make_segment
from tests.mortal_worker import TIMEOUT_S, MortalWorker


class Replicas:
    """Two replicas whose queues have room for two segments each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.models = [GatedModel(ToyModel(eos_bias=-100.0)) for _ in range(2)]
        self.workers = [MortalWorker(model, self.clock) for model in self.models]
        metrics = Metrics(CollectorRegistry())
        settings = SchedulingSettings(num_workers=1, max_batch_segments=1, max_queue_segments=2)
        self.schedulers = [
            Scheduler(worker, model.limits, settings, metrics, self.clock, loop=background_loop())
            for worker, model in zip(self.workers, self.models, strict=True)
        ]
        self.all = ReplicaScheduler(self.schedulers, self.clock)

    @property
    def costs(self) -> list[int]:
        return [scheduler.outstanding_cost for scheduler in self.schedulers]

    def submit(self, num_segments: int = 1) -> list[Future[SegmentResult]]:
        return list(self.all.submit([make_segment(7, 8) for _ in range(num_segments)]))

    def open(self) -> None:
        for model in self.models:
            model.open()


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    replicas = Replicas()
    yield replicas
    replicas.open()
    replicas.all.stop()


def test_request_goes_as_a_whole_to_the_replica_with_the_least_outstanding_cost(replicas: Replicas) -> None:
    replicas.all.start()

    small, large = replicas.submit(), replicas.submit(2)
    before = replicas.costs
    assert before[1] == 2 * before[0] > 0
    third = replicas.submit()

    assert replicas.costs == [before[1], before[1]]
    replicas.open()
    results = [future.result(TIMEOUT_S) for future in (*small, *large, *third)]
    assert len({result.hypotheses[0].token_ids for result in results}) == 1
    assert replicas.all.drain(TIMEOUT_S)
    assert replicas.costs == [0, 0]


def test_replica_that_lost_its_worker_gets_no_requests_for_ten_seconds(replicas: Replicas) -> None:
    replicas.all.start()
    (lost,), (other,) = replicas.submit(), replicas.submit()
    for model in replicas.models:
        model.wait_for_step()

    replicas.workers[0].die()
    with pytest.raises(EngineError):
        lost.result(TIMEOUT_S)
    (following,) = replicas.submit()

    assert replicas.costs[0] == 0
    replicas.clock.advance(10.0)
    (later,) = replicas.submit()
    assert replicas.costs[0] > 0
    replicas.open()
    assert all(future.result(TIMEOUT_S).hypotheses for future in (other, following, later))


def test_all_replicas_are_warmed_up_and_drained(replicas: Replicas) -> None:
    replicas.open()
    (result,) = replicas.all.warm_up([make_segment(7, max_target_tokens=4)])
    assert result.num_steps == 4
    assert all(model.step_sizes for model in replicas.models)
    assert [scheduler.cache_bytes for scheduler in replicas.schedulers] == [CACHE_BYTES] * 2

    assert replicas.all.drain(TIMEOUT_S)

    for scheduler in replicas.schedulers:
        with pytest.raises(DrainingError):
            scheduler.submit([make_segment(7)])


class ClosingWorker(Worker):
    is_closed = False

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.is_closed = True


def test_workers_of_all_replicas_are_opened_or_all_are_closed() -> None:
    def fail() -> ClosingWorker:
        raise ConfigError("runtime.device", "cuda", "GPU 2 to work")

    first, second = workers = [ClosingWorker(ToyModel()) for _ in range(2)]

    assert open_replicas(first, []) == [first]
    assert open_replicas(first, [lambda: second]) == workers
    assert [worker.is_closed for worker in workers] == [False, False]
    with pytest.raises(ConfigError):
        open_replicas(first, [lambda: second, fail])
    assert [worker.is_closed for worker in workers] == [True, True]


def test_request_is_rejected_if_the_least_loaded_replica_has_no_room(replicas: Replicas) -> None:
    for _ in range(2):
        replicas.submit(2)

    with pytest.raises(OverloadedError):
        replicas.submit()
    replicas.all.reject_early(10, SearchConfig(), RequestContext(caller="one"))
    assert replicas.all.expected_decode_cost([make_segment(7, 8)]) > 0
