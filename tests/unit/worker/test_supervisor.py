import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import ConfigError, DragomanError, DrainingError, EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.worker.messages import LoadCommand, Loaded
from dragoman_service.worker.supervisor import DecodingProcess, LoadLimits, ProcessCore
from tests.fakes import GatedModel, ToyModel
from tests.threaded_core import TIMEOUT_S, MortalCore, begin, decode, decode_here, joining
from tests.tiny_bundle import build_tiny_bundle

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
YOUNG_S, SOUND_S = 1.0, 60.0
SILENT = "tests.unit.worker.silent_process"
NUM_KILLS = 8


class FakeProcess:
    """Decodes in threads; ends when it is told to."""

    def __init__(self, model: StepModel, pid: int) -> None:
        self.pid = pid
        self.age_s = YOUNG_S
        self.loaded = Loaded(device="cpu", precision="fp32", weights_bytes=10 * pid)
        self.resident_bytes = 100 * pid
        self.is_closed = False
        self._core = MortalCore(model)
        self._has_ended = False

    def connect(self) -> "Connection[Any, Any]":
        if self._has_ended:
            raise BrokenPipeError
        return self._core.connect()

    def note_failure(self) -> None:
        """Count nothing."""

    def end(self) -> None:
        self._has_ended = True
        self._core.die()

    def close(self) -> None:
        self.is_closed = True
        self.end()


def load_command(bundle: Bundle, settings: RuntimeSettings | None = None) -> LoadCommand:
    return LoadCommand(
        directory=bundle.directory, settings=settings or RuntimeSettings(), niceness=0, log_level=logging.WARNING
    )


class FakeStarts(ProcessCore):
    """Starts fakes, but for the times at which it must not work."""

    def __init__(self, bundle: Bundle, model: StepModel = ENDLESS) -> None:
        self.model = model
        self.started: list[FakeProcess] = []
        self.faults: list[DragomanError] = []
        self.registry = CollectorRegistry()
        super().__init__(load_command(bundle), name="tiny/1", module="none", metrics=Metrics(self.registry))

    @property
    def num_restarts(self) -> float | None:
        return self.registry.get_sample_value("dragoman_decoding_process_restarts_total")

    def end_by_itself(self, process: FakeProcess) -> None:
        """As the thread that follows a process does it."""
        process.end()
        begin(self._ended, process).result(TIMEOUT_S)

    def _started(self) -> DecodingProcess:
        if self.faults:
            raise self.faults.pop(0)
        self.started.append(FakeProcess(self.model, pid=len(self.started) + 1))
        return cast("DecodingProcess", self.started[-1])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundles") / "1", precisions=("fp32",))


@pytest.fixture
def core(bundle: Bundle) -> Iterator[FakeStarts]:
    core = FakeStarts(bundle)
    yield core
    core.close()


def test_it_has_the_facts_of_the_process(core: FakeStarts) -> None:
    assert core.process.loaded.precision == "fp32"
    assert (core.process.loaded.weights_bytes, core.process.resident_bytes) == (10, 100)


def test_several_batches_decode_in_one_process(core: FakeStarts) -> None:
    pair = [core.connect() for _ in range(2)]

    assert [set(decode(batch, joining(number))) for number, batch in enumerate(pair)] == [{0}, {1}]
    assert len(core.started) == 1
    for batch in pair:
        batch.close()


def test_an_ended_process_is_started_again_once_when_batches_need_it(core: FakeStarts) -> None:
    for batch in [core.connect() for _ in range(2)]:
        decode(batch, joining(1))
        batch.close()
    core.started[0].end()

    pair = [one.result(TIMEOUT_S) for one in [begin(core.connect) for _ in range(2)]]

    assert [set(decode(batch, joining(2))) for batch in pair] == [{2}, {2}]
    assert (len(core.started), core.num_restarts) == (2, 1)
    assert core.started[0].is_closed
    assert (core.process.loaded.weights_bytes, core.process.resident_bytes) == (20, 200)
    for batch in pair:
        batch.close()


def test_a_sound_process_that_ends_is_started_again_at_once(core: FakeStarts, caplog: pytest.LogCaptureFixture) -> None:
    core.started[0].age_s = SOUND_S

    core.end_by_itself(core.started[0])

    assert (len(core.started), core.num_restarts) == (2, 1)
    assert "decoding process started again" in caplog.messages


def test_a_process_that_ends_young_is_started_again_only_when_it_is_needed(core: FakeStarts) -> None:
    core.end_by_itself(core.started[0])
    assert len(core.started) == 1

    with core.connect() as batch:
        assert set(decode(batch, joining(1))) == {1}

    assert (len(core.started), core.num_restarts) == (2, 1)


def test_the_end_of_a_process_that_was_replaced_means_nothing(core: FakeStarts) -> None:
    core.started[0].age_s = SOUND_S
    core.end_by_itself(core.started[0])

    core.end_by_itself(core.started[0])

    assert len(core.started) == 2


def test_the_end_of_a_process_after_it_was_closed_means_nothing(core: FakeStarts) -> None:
    core.started[0].age_s = SOUND_S
    core.close()

    core.end_by_itself(core.started[0])

    assert len(core.started) == 1
    assert core.started[0].is_closed


@pytest.mark.parametrize("fault", [EngineError("no memory"), ConfigError("runtime.device", "cuda", "a GPU")])
def test_a_process_that_cannot_be_started_again_fails_the_connection_and_the_next_one_tries_anew(
    core: FakeStarts, fault: DragomanError
) -> None:
    core.started[0].end()
    core.faults.append(fault)

    with pytest.raises(EngineError, match=str(fault)):
        core.connect()

    assert core.num_restarts == 0
    with core.connect() as batch:
        assert set(decode(batch, joining(2))) == {2}
    assert core.num_restarts == 1


def test_a_sound_process_that_cannot_be_started_again_is_logged(
    core: FakeStarts, caplog: pytest.LogCaptureFixture
) -> None:
    core.started[0].age_s = SOUND_S
    core.faults.append(EngineError("no memory"))

    core.end_by_itself(core.started[0])

    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.message == "decoding process cannot be started again"
    assert core.num_restarts == 0


def test_there_is_no_connection_after_the_end(core: FakeStarts) -> None:
    core.close()

    with pytest.raises(EngineError, match="decoding has ended"):
        core.connect()

    assert len(core.started) == 1


def test_an_end_in_the_middle_of_decoding_ends_the_connections(bundle: Bundle) -> None:
    model = GatedModel(ENDLESS)
    core = FakeStarts(bundle, model)
    with core.connect() as batch:
        batch.send(joining(1))
        model.wait_for_step()

        core.started[0].end()

        with pytest.raises(EOFError):
            batch.recv()
    model.open()
    with core.connect() as batch:
        assert set(decode(batch, joining(2))) == {2}
    assert core.num_restarts == 1
    core.close()


def test_a_real_process_decodes_as_this_one_and_comes_back_after_it_was_killed(bundle: Bundle) -> None:
    command = joining(*range(6), beam_size=3, num_hypotheses=3, max_target_tokens=20)
    expected = decode_here(OnnxStepModel(bundle, RuntimeSettings()), command)
    registry = CollectorRegistry()
    core = ProcessCore(load_command(bundle), name="tiny/1", module="dragoman_service.worker", metrics=Metrics(registry))
    with core.connect() as batch:
        answers = [decode(batch, command)]
    first = core.process

    os.kill(first.pid, signal.SIGKILL)
    first._process.wait(TIMEOUT_S)
    with core.connect() as batch:
        answers.append(decode(batch, command))

    assert answers == [expected] * 2
    assert registry.get_sample_value("dragoman_decoding_process_restarts_total") == 1
    assert core.process.resident_bytes > 0
    core.close()
    assert not Path(f"/proc/{core.process.pid}").exists()
    assert core.process.resident_bytes == 0


@pytest.mark.parametrize(
    "settings", [RuntimeSettings(precision="int8"), RuntimeSettings(device="cuda", precision="int3")]
)
def test_a_network_that_cannot_be_loaded_is_the_same_error_as_here(bundle: Bundle, settings: RuntimeSettings) -> None:
    with pytest.raises(DragomanError) as here:
        OnnxStepModel(bundle, settings)

    with pytest.raises(DragomanError) as there:
        DecodingProcess(
            load_command(bundle, settings), name="tiny/1", module="dragoman_service.worker", on_end=lambda _: None
        )

    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))
    assert vars(there.value) == vars(here.value)


def real_core(bundle: Bundle, registry: CollectorRegistry, *, module: str, **limits: Any) -> ProcessCore:
    metrics = Metrics(registry)
    return ProcessCore(load_command(bundle), name="tiny/1", module=module, metrics=metrics, limits=LoadLimits(**limits))


def num_failures(registry: CollectorRegistry) -> dict[str, float]:
    """Return how often processes were counted as failed, by cause."""
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    failures = [sample for sample in samples if sample.name == "dragoman_decoding_process_failures_total"]
    return {sample.labels["cause"]: sample.value for sample in failures if sample.value}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def started(known: set[int]) -> int:
    """Return a process of this one that is new, once there is one."""
    until_s = time.monotonic() + TIMEOUT_S
    while not (found := children() - known):
        assert time.monotonic() < until_s, "none was started"
    return found.pop()


def test_a_process_that_does_not_load_in_time_is_killed(bundle: Bundle) -> None:
    before, registry = children(), CollectorRegistry()

    with pytest.raises(EngineError, match=r"not loaded and warmed up within 0\.5 s \(models\.load_timeout_s\)"):
        begin(real_core, bundle, registry, module=SILENT, timeout_s=0.5).result(TIMEOUT_S)

    assert children() == before
    assert num_failures(registry) == {"load_timeout": 1}


def test_a_load_ends_with_the_server(bundle: Bundle) -> None:
    before, registry, stopping = children(), CollectorRegistry(), threading.Event()
    loading = begin(real_core, bundle, registry, module=SILENT, stopping=stopping)
    started(before)

    stopping.set()

    with pytest.raises(DrainingError):
        loading.result(TIMEOUT_S)
    assert children() == before
    assert num_failures(registry) == {}


def test_a_process_that_is_killed_as_it_is_stuck_takes_no_more_batches_and_is_counted_once(bundle: Bundle) -> None:
    registry = CollectorRegistry()
    core = real_core(bundle, registry, module="dragoman_service.worker")
    batch, stuck = core.connect(), core.process
    os.kill(stuck.pid, signal.SIGSTOP)

    assert core.kill("no_step")

    with core.connect() as other:
        assert set(decode(other, joining(1))) == {1}
    with pytest.raises((EOFError, OSError)):
        batch.recv()
    assert core.process is not stuck
    core.close()
    assert num_failures(registry) == {"no_step": 1}


@pytest.mark.slow
def test_each_process_that_is_killed_is_counted_once_loaded_or_not(bundle: Bundle) -> None:
    registry = CollectorRegistry()
    core = real_core(bundle, registry, module="dragoman_service.worker")
    for _ in range(NUM_KILLS // 2):
        core.connect().close()
        os.kill(core.process.pid, signal.SIGKILL)
        core.process._process.wait(TIMEOUT_S)

        known = children()
        connecting = begin(core.connect)
        os.kill(started(known), signal.SIGKILL)
        with pytest.raises(EngineError, match="ended with -9 before it had loaded"):
            connecting.result(TIMEOUT_S)

    core.close()
    assert num_failures(registry) == {"ended": NUM_KILLS}
