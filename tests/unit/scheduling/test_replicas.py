"""Two engines with a device each, here a thread each, over gated models and a clock moved by hand."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import SearchConfig, SegmentResult
from dragoman_service.errors import ConfigError, DrainingError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.replicas import ReplicaScheduler, open_others
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.fakes import GatedModel, ManualClock, ToyModel, make_segment
from tests.threaded_core import CACHE_BYTES, TIMEOUT_S, MortalCore


class Engines:
    """A group of two engines with one decoding thread each, and room for two waiting segments each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.models = [GatedModel(ToyModel(eos_bias=-100.0)) for _ in range(2)]
        self.cores = [MortalCore(model, self.clock) for model in self.models]
        self.metrics = Metrics(CollectorRegistry())
        settings = SchedulingSettings(num_workers=1, max_batch_segments=1, max_queue_segments=2)
        self.clients = [
            Scheduler(core, model.limits, settings, self.metrics, self.clock)
            for core, model in zip(self.cores, self.models, strict=True)
        ]
        self.group = ReplicaScheduler(self.clients, self.clock)

    def submit(self, num_segments: int = 1, **search: int) -> list[Future[SegmentResult]]:
        """Submit a request."""
        return list(self.group.submit([make_segment(7, 8, **search) for _ in range(num_segments)]))

    def open(self) -> None:
        """Let all steps pass from now on."""
        for model in self.models:
            model.open()


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.open()
    engines.group.stop()


def works(engines: Engines) -> list[bool]:
    """Which of the engines have work."""
    return [client.unanswered_work > 0 for client in engines.clients]


def test_requests_go_to_the_engine_with_the_least_work_as_a_whole(engines: Engines) -> None:
    engines.group.start()

    small, large = engines.submit(), engines.submit(2)
    assert works(engines) == [True, True]
    before = [client.unanswered_work for client in engines.clients]
    assert before[1] == 2 * before[0]
    third = engines.submit()  # beside the small one

    assert [client.unanswered_work for client in engines.clients] == [before[1], before[1]]
    engines.open()
    results = [future.result(TIMEOUT_S) for future in (*small, *large, *third)]
    assert len({result.hypotheses[0].token_ids for result in results}) == 1
    assert engines.group.drain(TIMEOUT_S)
    assert works(engines) == [False, False]


def test_an_engine_that_lost_its_process_gets_nothing_for_a_while(engines: Engines) -> None:
    engines.group.start()
    (lost,), (kept,) = engines.submit(), engines.submit()
    for model in engines.models:
        model.wait_for_step()

    engines.cores[0].die()
    with pytest.raises(EngineError):
        lost.result(TIMEOUT_S)
    assert works(engines) == [False, True]
    (next_one,) = engines.submit()  # although the other engine has more to do

    assert works(engines) == [False, True]
    engines.clock.advance(10.0)
    (later,) = engines.submit()
    assert works(engines) == [True, True]
    engines.open()
    assert all(len(future.result(TIMEOUT_S).hypotheses) for future in (kept, next_one, later))


def test_all_engines_warm_up_drain_and_stop(engines: Engines) -> None:
    engines.open()
    (result,) = engines.group.warm_up([make_segment(7, max_target_tokens=4)])
    assert result.num_steps == 4
    assert [len(model.step_sizes) > 0 for model in engines.models] == [True, True]
    assert [client.cache_bytes for client in engines.clients] == [CACHE_BYTES, CACHE_BYTES]

    assert engines.group.drain(TIMEOUT_S)

    for client in engines.clients:
        with pytest.raises(DrainingError):
            client.submit([make_segment(7)])


def test_of_engines_that_are_opened_all_are_there_or_none() -> None:
    first, second = cores = [ClosingCore(ToyModel()) for _ in range(2)]

    assert open_others(first, []) == [first]
    assert open_others(first, [lambda: second]) == cores
    assert [core.is_closed for core in cores] == [False, False]
    with pytest.raises(ConfigError, match="GPU 2"):
        open_others(first, [lambda: second, _broken])
    assert [core.is_closed for core in cores] == [True, True]


class ClosingCore(Worker):
    is_closed = False

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.is_closed = True


def _broken() -> ClosingCore:
    raise ConfigError("runtime.device", "cuda", "GPU 2 to work")


def test_a_request_is_rejected_if_the_least_loaded_engine_has_no_room(engines: Engines) -> None:
    for _ in range(2):
        engines.submit(2)  # they wait, as nothing was started

    with pytest.raises(OverloadedError):
        engines.submit()
    engines.group.reject_early(10, SearchConfig(), RequestContext(caller="one"))  # which was rejected a moment ago
    assert engines.group.expected_work([make_segment(7, 8)]) > 0
