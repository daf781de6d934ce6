import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import Bundle
from dragoman_service.errors import ConfigError, DragomanError, DrainingError, EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.worker.__main__ import load_step_model
from dragoman_service.worker.messages import LoadCommand
from dragoman_service.worker.supervisor import LoadLimits, WorkerProcess, WorkerSupervisor
from tests.mortal_worker import TIMEOUT_S, begin, decode, decode_here, joining
from tests.tiny_bundle import build_tiny_bundle

YOUNG_S, STABLE_S = 1.0, 60.0
WORKER, SILENT = "dragoman_service.worker", "tests.unit.worker.silent_process"
NUM_KILLS = 8


class FakeProcess:
    """Its connections are its process id; it exits when the test says so."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.age_s = YOUNG_S
        self.resident_bytes = 100 * pid
        self.is_closed = self.has_exited = False

    def connect(self) -> int:
        if self.has_exited:
            raise BrokenPipeError
        return self.pid

    def record_failure(self) -> None:
        """Count nothing."""

    def close(self) -> None:
        self.is_closed = self.has_exited = True


class FakeSupervisor(WorkerSupervisor):
    """Starts fakes; `faults` are raised by the next starts."""

    def __init__(self, bundle: Bundle) -> None:
        self.started: list[FakeProcess] = []
        self.faults: list[DragomanError] = []
        self.registry = CollectorRegistry()
        super().__init__(load_command(bundle.directory), name="tiny/1", module="none", metrics=Metrics(self.registry))

    @property
    def num_restarts(self) -> float | None:
        return self.registry.get_sample_value("dragoman_worker_restarts_total")

    def connect(self) -> Any:
        """Return the id of the process."""
        return super().connect()

    def exit(self, process: FakeProcess, age_s: float = STABLE_S) -> None:
        """Let a process exit, as the thread that follows it does."""
        process.has_exited, process.age_s = True, age_s
        begin(self._restart_after_exit, process).result(TIMEOUT_S)

    def _start(self) -> WorkerProcess:
        if self.faults:
            raise self.faults.pop(0)
        self.started.append(FakeProcess(pid=len(self.started) + 1))
        return cast("WorkerProcess", self.started[-1])


def load_command(directory: Path, settings: RuntimeSettings | None = None) -> LoadCommand:
    return LoadCommand(
        directory=directory, settings=settings or RuntimeSettings(), niceness=0, log_level=logging.WARNING
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundles") / "1", precisions=("fp32",))


@pytest.fixture
def supervisor(bundle: Bundle) -> Iterator[FakeSupervisor]:
    supervisor = FakeSupervisor(bundle)
    yield supervisor
    supervisor.close()


def test_batches_share_one_process_that_is_restarted_once_after_its_exit(supervisor: FakeSupervisor) -> None:
    for number in (1, 2, 3):
        connecting = [begin(supervisor.connect) for _ in range(2)]

        assert [future.result(TIMEOUT_S) for future in connecting] == [number] * 2
        assert (len(supervisor.started), supervisor.num_restarts) == (number, number - 1)
        assert supervisor.resident_bytes() == 100 * number
        supervisor.started[-1].has_exited = True
    assert [process.is_closed for process in supervisor.started] == [True, True, False]


@pytest.mark.parametrize(("age_s", "num_started"), [(YOUNG_S, 1), (STABLE_S, 2)])
def test_stable_process_is_restarted_at_once_and_a_young_one_when_it_is_needed(
    supervisor: FakeSupervisor, caplog: pytest.LogCaptureFixture, age_s: float, num_started: int
) -> None:
    supervisor.exit(supervisor.started[0], age_s)

    assert len(supervisor.started) == num_started
    assert supervisor.connect() == 2
    assert supervisor.num_restarts == 1
    assert "worker process restarted" in caplog.messages


@pytest.mark.parametrize("is_closed", [False, True], ids=["replaced", "closed"])
def test_exit_of_a_replaced_or_closed_process_is_ignored(supervisor: FakeSupervisor, is_closed: bool) -> None:
    if is_closed:
        supervisor.close()
    else:
        supervisor.exit(supervisor.started[0])

    supervisor.exit(supervisor.started[0])

    assert len(supervisor.started) == (1 if is_closed else 2)
    assert supervisor.started[0].is_closed


@pytest.mark.parametrize("fault", [EngineError("no memory"), ConfigError("runtime.device", "cuda", "a GPU")])
def test_failed_restart_fails_the_connection_and_is_tried_again(
    supervisor: FakeSupervisor, caplog: pytest.LogCaptureFixture, fault: DragomanError
) -> None:
    supervisor.faults += [fault, fault]
    supervisor.exit(supervisor.started[0])

    with pytest.raises(EngineError, match=str(fault)):
        supervisor.connect()

    assert [record.message for record in caplog.records] == ["worker process restart failed"]
    assert supervisor.num_restarts == 0
    assert supervisor.connect() == 2
    assert supervisor.num_restarts == 1


def test_closed_supervisor_opens_no_connection(supervisor: FakeSupervisor) -> None:
    supervisor.close()

    with pytest.raises(EngineError, match="worker is closed"):
        supervisor.connect()

    assert len(supervisor.started) == 1


@pytest.mark.parametrize(
    ("settings", "damaged"),
    [
        (RuntimeSettings(precision="int8"), ""),  # the bundle has no int8 graphs
        (RuntimeSettings(device="cuda", precision="int3"), ""),
        (RuntimeSettings(), "*.onnx"),
        (RuntimeSettings(), "*weights*"),
        (RuntimeSettings(), "manifest.json"),
    ],
)
def test_load_errors_of_a_process_equal_local_ones(
    bundle: Bundle, tmp_path: Path, settings: RuntimeSettings, damaged: str
) -> None:
    directory = Path(shutil.copytree(bundle.directory, tmp_path / "1"))
    for path in sorted(directory.rglob(damaged)) if damaged else ():
        path.write_bytes(b"damaged" + path.read_bytes()[7:])
    command = load_command(directory, settings)

    with pytest.raises(DragomanError) as local:
        load_step_model(command)
    with pytest.raises(DragomanError) as remote:
        WorkerProcess(command, name="tiny/1", module=WORKER, on_exit=lambda _: None)

    assert (type(remote.value), str(remote.value)) == (type(local.value), str(local.value))
    assert vars(remote.value) == vars(local.value)


def test_worker_of_another_version_of_the_service_is_an_error(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_service.worker.supervisor.format_digest", lambda _: "of another version")

    with pytest.raises(EngineError, match="restart the server"):
        WorkerProcess(load_command(bundle.directory), name="tiny/1", module=WORKER, on_exit=lambda _: None)


def start_supervisor(
    bundle: Bundle, registry: CollectorRegistry, *, module: str = WORKER, **limits: Any
) -> WorkerSupervisor:
    metrics, load_limits = Metrics(registry), LoadLimits(**limits)
    return WorkerSupervisor(
        load_command(bundle.directory), name="tiny/1", module=module, metrics=metrics, limits=load_limits
    )


def num_failures(registry: CollectorRegistry) -> dict[str, float]:
    """Return the number of failed processes by cause."""
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    failures = [sample for sample in samples if sample.name == "dragoman_worker_failures_total"]
    return {sample.labels["cause"]: sample.value for sample in failures if sample.value}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def new_child(known: set[int]) -> int:
    """Wait for a new child process."""
    until_s = time.monotonic() + TIMEOUT_S
    while not (new := children() - known):
        assert time.monotonic() < until_s, "no process was started"
    return new.pop()


def test_process_decodes_like_this_one_and_is_restarted_after_a_kill(bundle: Bundle) -> None:
    command = joining(*range(6), beam_size=3, num_hypotheses=3, max_target_tokens=20)
    expected = decode_here(OnnxStepModel(bundle, RuntimeSettings()), command)
    registry = CollectorRegistry()
    supervisor = start_supervisor(bundle, registry)
    with supervisor.connect() as batch:
        results = [decode(batch, command)]
    first = supervisor.process

    os.kill(first.pid, signal.SIGKILL)
    first._process.wait(TIMEOUT_S)
    with supervisor.connect() as batch:
        results.append(decode(batch, command))

    assert results == [expected] * 2
    assert registry.get_sample_value("dragoman_worker_restarts_total") == 1
    assert supervisor.resident_bytes() > 0
    supervisor.close()
    assert not Path(f"/proc/{supervisor.process.pid}").exists()
    assert supervisor.resident_bytes() == 0


def test_process_that_does_not_load_in_time_is_killed(bundle: Bundle) -> None:
    before, registry = children(), CollectorRegistry()

    with pytest.raises(EngineError, match=r"within 0\.5 s \(models\.load_timeout_s\)"):
        begin(start_supervisor, bundle, registry, module=SILENT, timeout_s=0.5).result(TIMEOUT_S)

    assert children() == before
    assert num_failures(registry) == {"load_timeout": 1}


def test_stop_of_the_server_aborts_loading(bundle: Bundle) -> None:
    before, registry, stopping = children(), CollectorRegistry(), threading.Event()
    loading = begin(start_supervisor, bundle, registry, module=SILENT, stopping=stopping)
    new_child(before)

    stopping.set()

    with pytest.raises(DrainingError):
        loading.result(TIMEOUT_S)
    assert children() == before
    assert num_failures(registry) == {}


def test_killed_stuck_process_takes_no_more_batches_and_is_counted_once(bundle: Bundle) -> None:
    registry = CollectorRegistry()
    supervisor = start_supervisor(bundle, registry)
    batch, stuck = supervisor.connect(), supervisor.process
    os.kill(stuck.pid, signal.SIGSTOP)

    assert supervisor.kill("no_step")

    with supervisor.connect() as other:
        assert set(decode(other, joining(1))) == {1}
    with pytest.raises((EOFError, OSError)):
        batch.recv()
    assert supervisor.process is not stuck
    supervisor.close()
    assert num_failures(registry) == {"no_step": 1}


@pytest.mark.slow
def test_each_killed_process_is_counted_once_loaded_or_not(bundle: Bundle) -> None:
    registry = CollectorRegistry()
    supervisor = start_supervisor(bundle, registry)
    for _ in range(NUM_KILLS // 2):
        supervisor.connect().close()
        os.kill(supervisor.process.pid, signal.SIGKILL)
        supervisor.process._process.wait(TIMEOUT_S)

        known = children()
        connecting = begin(supervisor.connect)
        os.kill(new_child(known), signal.SIGKILL)
        with pytest.raises(EngineError, match="exited with -9 before the model was loaded"):
            connecting.result(TIMEOUT_S)

    supervisor.close()
    assert num_failures(registry) == {"ended": NUM_KILLS}
