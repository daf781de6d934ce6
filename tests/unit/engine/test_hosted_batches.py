import logging
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from service.bundle import Bundle
from service.decoding.step_model import StepModel
from service.engine.core import LocalBatch
from service.engine.process import DecodingProcess, HostedBatches
from service.engine.protocol import Report
from service.errors import ConfigError, DragomanError, EngineError
from service.runtime.device import Placement
from service.runtime.model_limits import model_limits
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings
from service.telemetry.metrics import Metrics
from tests.fakes import GatedModel, ManualClock, ToyModel
from tests.hosted_in_threads import CACHE_BYTES, TIMEOUT_S, ThreadedBatches, begin, decode, exchange, joining
from tests.tiny_bundle import build_tiny_bundle

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
YOUNG_S, SOUND_S = 1.0, 60.0


class FakeProcess:
    """Decodes in threads; ends when it is told to."""

    def __init__(self, model: StepModel, pid: int) -> None:
        self.pid = pid
        self.age_s = YOUNG_S
        self.placement = Placement(device="cpu", precision="fp32", reason="a fake")
        self.weights_bytes = 10 * pid
        self.resident_bytes = 100 * pid
        self.is_closed = False
        self._batches = ThreadedBatches(model)
        self._has_ended = False

    def connect(self) -> "Connection[Any, Any]":
        if self._has_ended:
            raise BrokenPipeError
        return self._batches.connect()

    def end(self) -> None:
        self._has_ended = True
        self._batches.die()

    def close(self) -> None:
        self.is_closed = True
        self.end()


class FakeStarts(HostedBatches):
    """Starts fakes, but for the times at which it must not work."""

    def __init__(self, bundle: Bundle, model: StepModel = ENDLESS) -> None:
        self.model = model
        self.started: list[FakeProcess] = []
        self.faults: list[DragomanError] = []
        self.registry = CollectorRegistry()
        super().__init__(bundle, RuntimeSettings(), niceness=0, metrics=Metrics(self.registry))

    @property
    def num_restarts(self) -> float | None:
        return self.registry.get_sample_value("mt_decoding_process_restarts_total")

    def end_by_itself(self, process: FakeProcess) -> None:
        """As the thread that follows a process does it."""
        process.end()
        begin(self._on_end, process).result(TIMEOUT_S)

    def _started(self) -> DecodingProcess:
        if self.faults:
            raise self.faults.pop(0)
        self.started.append(FakeProcess(self.model, pid=len(self.started) + 1))
        return cast("DecodingProcess", self.started[-1])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundles") / "1", precisions=("fp32",))


@pytest.fixture
def batches(bundle: Bundle) -> Iterator[FakeStarts]:
    batches = FakeStarts(bundle)
    yield batches
    batches.close()


def test_they_have_the_limits_of_the_bundle_and_the_facts_of_the_process(batches: FakeStarts, bundle: Bundle) -> None:
    limits = bundle.manifest.limits

    assert (batches.limits.max_source_tokens, batches.limits.max_target_tokens) == (
        limits.max_source_tokens,
        limits.max_target_tokens,
    )
    assert batches.limits == model_limits(bundle.manifest)
    assert (batches.placement.precision, batches.weights_bytes, batches.resident_bytes) == ("fp32", 10, 100)


def test_a_clock_that_another_process_does_not_have_is_refused(batches: FakeStarts) -> None:
    with pytest.raises(ValueError, match=r"time\.monotonic"):
        batches.new_batch(ManualClock())


def test_several_batches_decode_in_one_process(batches: FakeStarts) -> None:
    pair = [batches.new_batch(time.monotonic) for _ in range(2)]

    assert [set(decode(batch, joining(key))) for key, batch in enumerate(pair)] == [{0}, {1}]
    assert len(batches.started) == 1
    for batch in pair:
        batch.close()


def test_what_reports_say_is_counted(batches: FakeStarts) -> None:
    batches._note(Report(turns=(), cache_bytes=7, cpu_s=1.5))
    batches._note(Report(turns=(), cache_bytes=5, cpu_s=0.25))

    assert batches.cache_bytes == 5
    assert batches.registry.get_sample_value("mt_decoding_process_cpu_seconds_total") == 1.75


def test_batches_pass_on_what_they_are_told(batches: FakeStarts) -> None:
    batch = batches.new_batch(time.monotonic)
    decode(batch, joining(1))
    batch.close()

    assert batches.cache_bytes == CACHE_BYTES


def test_an_ended_process_is_started_again_once_when_batches_need_it(batches: FakeStarts) -> None:
    pair = [batches.new_batch(time.monotonic) for _ in range(2)]
    for batch in pair:
        decode(batch, joining(1))
    batches.started[0].end()

    results = [begin(decode, batch, joining(2)) for batch in pair]

    assert [set(result.result(TIMEOUT_S)) for result in results] == [{2}, {2}]
    assert (len(batches.started), batches.num_restarts) == (2, 1)
    assert batches.started[0].is_closed
    assert (batches.weights_bytes, batches.resident_bytes) == (20, 200)
    for batch in pair:
        batch.close()


def test_a_sound_process_that_ends_is_started_again_at_once(
    batches: FakeStarts, caplog: pytest.LogCaptureFixture
) -> None:
    batches.started[0].age_s = SOUND_S

    batches.end_by_itself(batches.started[0])

    assert (len(batches.started), batches.num_restarts) == (2, 1)
    assert "decoding process started again" in caplog.messages


def test_a_process_that_ends_young_is_started_again_only_when_it_is_needed(batches: FakeStarts) -> None:
    batches.end_by_itself(batches.started[0])
    assert len(batches.started) == 1

    batch = batches.new_batch(time.monotonic)
    assert set(decode(batch, joining(1))) == {1}

    assert (len(batches.started), batches.num_restarts) == (2, 1)
    batch.close()


def test_the_end_of_a_process_that_was_replaced_means_nothing(batches: FakeStarts) -> None:
    batches.started[0].age_s = SOUND_S
    batches.end_by_itself(batches.started[0])

    batches.end_by_itself(batches.started[0])

    assert len(batches.started) == 2


def test_the_end_of_a_process_after_they_were_closed_means_nothing(batches: FakeStarts) -> None:
    batches.started[0].age_s = SOUND_S
    batches.close()

    batches.end_by_itself(batches.started[0])

    assert len(batches.started) == 1
    assert batches.started[0].is_closed


@pytest.mark.parametrize("fault", [EngineError("no memory"), ConfigError("runtime.device", "cuda", "a GPU")])
def test_a_process_that_cannot_be_started_again_fails_who_needs_it_and_the_next_one_tries_anew(
    batches: FakeStarts, fault: DragomanError
) -> None:
    batch = batches.new_batch(time.monotonic)
    batches.started[0].end()
    batches.faults.append(fault)

    with pytest.raises(EngineError, match=str(fault)):
        exchange(batch, joining(1))

    assert batches.num_restarts == 0
    assert set(decode(batch, joining(2))) == {2}
    assert batches.num_restarts == 1
    batch.close()


def test_a_sound_process_that_cannot_be_started_again_is_logged(
    batches: FakeStarts, caplog: pytest.LogCaptureFixture
) -> None:
    batches.started[0].age_s = SOUND_S
    batches.faults.append(EngineError("no memory"))

    batches.end_by_itself(batches.started[0])

    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.message == "decoding process cannot be started again"
    assert batches.num_restarts == 0


def test_who_needs_a_process_after_they_were_closed_is_told_so(batches: FakeStarts) -> None:
    batch = batches.new_batch(time.monotonic)
    batches.close()

    with pytest.raises(EngineError, match="decoding has ended"):
        exchange(batch, joining(1))

    assert len(batches.started) == 1
    batch.close()


def test_an_end_in_the_middle_of_decoding_fails_those_in_the_batch_and_nobody_else(bundle: Bundle) -> None:
    model = GatedModel(ENDLESS)
    batches = FakeStarts(bundle, model)
    busy, idle = (batches.new_batch(time.monotonic) for _ in range(2))
    waiting = begin(busy.exchange, joining(1))
    model.wait_for_step()

    batches.started[0].end()

    with pytest.raises(EngineError, match="has ended"):
        waiting.result(TIMEOUT_S)
    model.open()
    assert [set(decode(batch, joining(2))) for batch in (idle, busy)] == [{2}, {2}]
    assert batches.num_restarts == 1
    for closable in (busy, idle, batches):
        closable.close()


def test_a_real_process_decodes_as_this_one_and_comes_back_after_it_was_killed(bundle: Bundle) -> None:
    orders = joining(*range(6), beam_size=3, num_hypotheses=3, max_target_tokens=20)
    expected = decode(LocalBatch(OnnxStepModel(bundle, RuntimeSettings()), time.monotonic), orders)
    registry = CollectorRegistry()
    batches = HostedBatches(bundle, RuntimeSettings(), niceness=0, metrics=Metrics(registry))
    batch = batches.new_batch(time.monotonic)
    answers = [decode(batch, orders)]
    first = batches._process

    os.kill(first.pid, signal.SIGKILL)
    first._process.wait(TIMEOUT_S)
    answers.append(decode(batch, orders))

    assert answers == [expected] * 2
    assert registry.get_sample_value("mt_decoding_process_restarts_total") == 1
    assert batches.resident_bytes > 0
    batch.close()
    batches.close()
    assert not Path(f"/proc/{batches._process.pid}").exists()
    assert batches.resident_bytes == 0


@pytest.mark.parametrize(
    "settings", [RuntimeSettings(precision="int8"), RuntimeSettings(device="cuda", precision="int3")]
)
def test_a_network_that_cannot_be_loaded_is_the_same_error_as_here(bundle: Bundle, settings: RuntimeSettings) -> None:
    with pytest.raises(DragomanError) as here:
        OnnxStepModel(bundle, settings)

    with pytest.raises(DragomanError) as there:
        HostedBatches(bundle, settings, niceness=0, metrics=Metrics(CollectorRegistry()))

    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))
    assert vars(there.value) == vars(here.value)
