"""The worker process of a real server: one for each version, killed, replaced, and gone at the end.

A worker that is stopped (SIGSTOP) keeps the segments of its batch, so that no test depends on its speed.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.datatypes import Ports
from dragoman_service.models.serving import SERVING_NAME
from dragoman_service.threads import shorten_slices, slice_ns
from tests.integration.real_process import (
    CALL_S,
    START_S,
    STOP_S,
    begin,
    command_line,
    connect,
    get,
    is_gone,
    process,
    wait_for_sample,
    wait_until_in_flight,
    worker_processes,
)
from tests.tiny_bundle import SENTENCES
from tests.waiting import wait_until

DEADLINE_S = 1.0
LOCAL = {"DRAGOMAN_RUNTIME__ISOLATION": "none"}
ONE_THREAD = {"DRAGOMAN_SCHEDULING__NUM_WORKERS": "1"}
WATCHING = {"DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.05", "DRAGOMAN_MODELS__SETTLE_S": "0"}
NOT_WATCHING = {"DRAGOMAN_MODELS__POLL_INTERVAL_S": "0"}
SIGNALS = [signal.SIGTERM, signal.SIGINT]
RESIDENT_BYTES = "dragoman_worker_resident_memory_bytes{"
NUM_LIVE = "dragoman_batch_live_segments"


class Server:
    """A ready server and its worker processes."""

    def __init__(self, running: ServerProcess, ports: Ports, channel: grpc.Channel) -> None:
        self.running = running
        self.ports = ports
        self.channel = channel
        self.pid = running.pid
        self.stub = pb_grpc.TranslationServiceStub(channel)
        self.admin = pb_grpc.ModelAdminServiceStub(channel)
        self._stopped: list[int] = []

    def workers(self) -> list[int]:
        return worker_processes(self.pid)

    def worker(self) -> int:
        """Return the only worker process."""
        (worker,) = self.workers()
        return worker

    def call(self, *texts: str, timeout_s: float = CALL_S, **fields: Any) -> Any:
        request = pb.TranslateRequest(texts=texts, source_language="en", target_language="de", **fields)
        return self.stub.Translate.future(request, timeout=timeout_s)

    def held_call(self, *, timeout_s: float = CALL_S, **fields: Any) -> Any:
        """Start a call and return it while its segment is in a halted batch."""
        self._stopped = self.workers()
        for worker in self._stopped:
            os.kill(worker, signal.SIGSTOP)
        call = self.call("A man.", timeout_s=timeout_s, **fields)
        wait_for_sample(self.ports, f"{NUM_LIVE} 1.0")
        return call

    def resume(self) -> None:
        """Continue halted batches."""
        for worker in self._stopped:
            if not is_gone(worker):
                os.kill(worker, signal.SIGCONT)

    def translates(self) -> bool:
        return code_name(self.call("A man.")) == "OK"

    def sample(self, name: str) -> float:
        """Return the first sample whose line starts with a name."""
        lines = [line for line in get(self.ports, "/metrics")[1].splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    @property
    def num_restarts(self) -> float:
        return self.sample("dragoman_worker_restarts_total")


@contextmanager
def ready_server(models: Path, **environment: str) -> Iterator[Server]:
    with process("--models", str(models), **{**ONE_THREAD, **environment}) as running:
        ports = running.wait_until_ready(timeout_s=START_S)
        with connect(ports) as channel:
            server = Server(running, ports, channel)
            try:
                yield server
            finally:
                server.resume()  # a stopped worker does not exit with the server


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with ready_server(tiny_model) as server:
        yield server


def code_name(call: Any) -> str:
    """Return the status of a call after its end."""
    error = call.exception(timeout=CALL_S)
    return "OK" if error is None else str(error.code().name)


def logged(log: str, *words: str) -> list[bool]:
    return [word in log for word in words]


@pytest.mark.slow
def test_each_version_has_one_process_for_all_threads(tiny_models: Path) -> None:
    with ready_server(tiny_models, DRAGOMAN_SCHEDULING__NUM_WORKERS="3") as server:
        assert code_name(server.call(*SENTENCES)) == "OK"

        assert len(server.workers()) == 2
        assert all(b"dragoman_service.worker" in command_line(pid) for pid in server.workers())
        assert server.sample(RESIDENT_BYTES) > 1 << 20
        assert server.sample("dragoman_worker_cpu_seconds_total") > 0
        assert server.sample("dragoman_kv_cache_bytes{") > 0
        assert server.num_restarts == 0


@pytest.mark.slow
def test_results_without_isolation_are_bit_identical(tiny_model: Path) -> None:
    options = pb.DecodingOptions(beam_size=4, num_hypotheses=4, return_alignment=True)
    responses: list[pb.TranslateResponse] = []
    for environment in ({}, LOCAL):
        with ready_server(tiny_model, **environment) as server:
            responses.append(server.call(*SENTENCES, options=options).result())
            assert len(server.workers()) == (not environment)
            assert (server.sample(RESIDENT_BYTES) > 0) == (not environment)
            assert (server.sample("dragoman_worker_cpu_seconds_total") > 0) == (not environment)

    isolated, local = responses
    assert list(isolated.translations) == list(local.translations)
    assert {len(each.hypotheses) for each in isolated.translations} <= {3, 4}  # equal texts are returned once
    assert isolated.translations[0].hypotheses[0].score < 0


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "niceness"), [("process", 7), ("none", None)])
def test_threads_that_answer_run_before_threads_that_decode(
    tiny_model: Path, isolation: str, niceness: int | None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        usual, has_short = pool.submit(lambda: (slice_ns(), shorten_slices())).result()
    environment = {"DRAGOMAN_RUNTIME__ISOLATION": isolation}
    if niceness is not None:
        environment["DRAGOMAN_SCHEDULING__DECODING_NICENESS"] = str(niceness)
    lower = niceness if niceness is not None else 0 if has_short else 15

    with ready_server(tiny_model, **environment) as server:
        assert server.translates()
        answering, *workers = [
            {(slice_ns(thread), os.getpriority(os.PRIO_PROCESS, thread)) for thread in threads_of(pid)}
            for pid in (server.pid, *server.workers())
        ]

    own = os.getpriority(os.PRIO_PROCESS, 0)
    decoding = (usual, min(own + lower, 19))
    assert ({100_000} if has_short else {usual}) <= {slice_ for slice_, _ in answering}
    assert decoding in (workers or [answering])[0]
    assert all(slice_ == usual for worker in workers for slice_, _ in worker)


def threads_of(pid: int) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


def test_worker_killed_while_decoding_fails_the_calls_in_its_batch_only(server: Server) -> None:
    call, killed = server.held_call(), server.worker()

    os.kill(killed, signal.SIGKILL)

    assert code_name(call) == "INTERNAL"
    assert server.translates()
    assert is_gone(killed)
    assert server.worker() != killed
    assert server.sample('dragoman_worker_failures_total{cause="ended"}') == 1
    assert server.num_restarts == 1
    assert server.sample(NUM_LIVE) == 0


@pytest.mark.slow
def test_killed_replica_fails_its_own_calls_only(tiny_model: Path) -> None:
    with ready_server(tiny_model, DRAGOMAN_RUNTIME__NUM_REPLICAS="2") as server:
        workers = server.workers()
        assert len(workers) == 2
        assert all(server.sample(f'{RESIDENT_BYTES}model="tiny",replica="{n}"') > 1 << 20 for n in range(2))
        calls = [server.held_call()]
        calls.append(server.call("A man."))
        wait_for_sample(server.ports, f"{NUM_LIVE} 2.0")

        os.kill(workers[0], signal.SIGKILL)
        wait_for_sample(server.ports, f"{NUM_LIVE} 1.0")
        server.resume()

        assert sorted(map(code_name, calls)) == ["INTERNAL", "OK"]
        assert all(server.translates() for _ in range(4))
        assert [is_gone(worker) for worker in workers] == [True, False]


@pytest.mark.parametrize(
    ("ends", "status", "samples"),
    [
        # The server or the worker may detect the deadline first.
        ("deadline", "DEADLINE_EXCEEDED", ("deadline_misses", "cancelled_segments")),
        ("cancellation", "CANCELLED", ("cancelled_segments",)),
    ],
)
def test_call_that_ends_during_decoding_frees_its_batch(
    server: Server, ends: str, status: str, samples: tuple[str, ...]
) -> None:
    assert server.translates()

    call = server.held_call(timeout_s=DEADLINE_S if ends == "deadline" else CALL_S)
    if ends == "cancellation":
        call.cancel()
        wait_for_sample(server.ports, 'dragoman_segments_total{outcome="cancelled"} 1.0')
    else:
        assert code_name(call) == status
    server.resume()

    wait_for_sample(server.ports, f"{NUM_LIVE} 0.0")
    assert sum(server.sample(f'dragoman_{sample}_total{{stage="decode"}}') for sample in samples) == 1
    assert server.translates()
    assert server.num_restarts == 0


def test_worker_exits_with_a_killed_server(server: Server) -> None:
    call = begin(server.channel, num_sentences=400)
    wait_until_in_flight(server.ports)
    worker = server.worker()

    server.running.send(signal.SIGKILL)

    wait_until(lambda: is_gone(worker))
    assert code_name(call) == "UNAVAILABLE"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_signal_to_all_processes_drains(server: Server, number: signal.Signals) -> None:
    call, worker = server.held_call(), server.worker()

    for pid in (worker, server.pid):
        os.kill(pid, number)
    server.running.wait_for("draining", timeout_s=STOP_S)
    server.resume()

    assert code_name(call) == "OK"
    assert server.running.wait(timeout_s=STOP_S) == 0
    assert is_gone(worker)
    assert logged(server.running.log, "stopped", "Traceback", "worker process exited") == [True, False, False]


@pytest.fixture
def leader(tiny_model: Path) -> Iterator[ServerProcess]:
    """Return a server that leads its own process group, as if started by a shell."""
    with ServerProcess("--models", str(tiny_model), process_group=0) as running:
        yield running


def loading_worker(running: ServerProcess) -> int:
    """Wait for the worker process that loads a model."""
    running.wait_for("listening", timeout_s=START_S)
    wait_until(lambda: bool(worker_processes(running.pid)))
    (worker,) = worker_processes(running.pid)
    return worker


@pytest.mark.parametrize(
    ("is_loading", "number"),
    [
        (False, signal.SIGTERM),
        (False, signal.SIGINT),
        pytest.param(True, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_signal_to_the_process_group_ends_all_processes_with_exit_code_0(
    leader: ServerProcess, number: signal.Signals, is_loading: bool
) -> None:
    worker = loading_worker(leader)
    if not is_loading:
        leader.wait_for("ready", timeout_s=START_S)

    os.killpg(leader.pid, number)

    assert leader.wait(timeout_s=STOP_S) == 0
    wait_until(lambda: is_gone(worker))
    assert logged(leader.log, "stopped", "Traceback", '"error"') == [True, False, False]


def test_stopped_worker_that_loads_does_not_keep_the_server_from_stopping(leader: ServerProcess) -> None:
    worker = loading_worker(leader)
    os.kill(worker, signal.SIGSTOP)

    leader.send(signal.SIGTERM)

    assert leader.wait(timeout_s=STOP_S) == 0
    wait_until(lambda: is_gone(worker))
    assert logged(leader.log, "stopped", "Traceback", '"error"') == [True, False, False]


@pytest.mark.slow
def test_worker_of_a_replaced_version_exits(tiny_models: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny" / "1", models / "tiny" / "1")
    (models / "tiny" / SERVING_NAME).write_text('versions = "latest:1"\n', encoding="utf-8")
    with ready_server(models, **WATCHING) as server:
        replaced = server.worker()

        shutil.copytree(tiny_models / "tiny" / "2", models / "tiny" / ".2")
        (models / "tiny" / ".2").rename(models / "tiny" / "2")
        server.running.wait_for("model unloaded", timeout_s=START_S)

        assert is_gone(replaced)
        assert server.worker() != replaced
        assert server.call("A man.", model="tiny").result().model_version == "2"
        assert server.num_restarts == 0
        assert "worker process exited" not in server.running.log


@pytest.mark.slow
def test_server_can_be_stopped_while_a_version_is_unloaded(tiny_models: Path) -> None:
    with ready_server(tiny_models, **NOT_WATCHING) as server:
        workers, call = server.workers(), server.held_call(model="tiny/1")
        unloading = server.admin.UnloadModel.future(pb.UnloadModelRequest(model="tiny/1"), timeout=CALL_S)
        wait_for_sample(server.ports, 'dragoman_model_state{model="tiny",state="draining",version="1"} 1.0')

        server.running.send(signal.SIGTERM)
        server.running.wait_for("draining", timeout_s=STOP_S)
        server.running.send(signal.SIGTERM)

        assert code_name(call) == "UNAVAILABLE"
        server.resume()
        assert server.running.wait(timeout_s=STOP_S) == 1
        assert unloading.exception(timeout=CALL_S) is None or code_name(unloading) == "UNAVAILABLE"
        assert logged(server.running.log, "stopped", "Traceback") == [True, False]
        assert all(map(is_gone, workers))
