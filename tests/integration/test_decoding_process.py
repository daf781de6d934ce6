"""The process that decodes, beside the real server's: one for each version, killed, replaced, and gone at the end.

A process that is stopped (SIGSTOP) keeps the segments of its batch there, so that nothing depends on how fast it is.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import dragoman_service.worker.supervisor
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.app import Ports
from dragoman_service.cli.demo import ServerProcess
from dragoman_service.errors import EngineError
from dragoman_service.models.serving import SERVING_NAME
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.threads import shorten_slices, slice_ns
from dragoman_service.worker.messages import LoadCommand
from dragoman_service.worker.supervisor import DecodingProcess
from tests.integration.real_process import (
    CALL_S,
    CHECKOUT,
    START_S,
    STOP_S,
    begin,
    connect,
    get,
    process,
    wait_for_sample,
    wait_until_in_flight,
)
from tests.tiny_bundle import SENTENCES

LOOK_EACH_S = 0.01
DEADLINE_S = 1.0
LOCAL = {"DRAGOMAN_RUNTIME__ISOLATION": "none"}
ONE_THREAD = {"DRAGOMAN_SCHEDULING__NUM_WORKERS": "1"}
WATCHFUL = {"DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.05", "DRAGOMAN_MODELS__SETTLE_S": "0"}
UNTOUCHED = {"DRAGOMAN_MODELS__POLL_INTERVAL_S": "0"}
RESTARTS = "dragoman_decoding_process_restarts_total"
RESIDENT_BYTES = "dragoman_decoding_process_resident_memory_bytes{"


class Server:
    """A server that is ready, and what can be done to its processes."""

    def __init__(self, running: ServerProcess, ports: Ports, channel: grpc.Channel) -> None:
        self.running = running
        self.ports = ports
        self.channel = channel
        self.pid = running._process.pid
        self.stub = pb_grpc.TranslationServiceStub(channel)
        self.admin = pb_grpc.ModelAdminServiceStub(channel)
        self._stopped: list[int] = []

    def children(self) -> list[int]:
        return decoding_processes(self.pid)

    def child(self) -> int:
        """The only one."""
        (child,) = self.children()
        return child

    def call(self, *texts: str, timeout_s: float = CALL_S, **fields: Any) -> Any:
        """Begin a call."""
        return self.stub.Translate.future(request(*texts, **fields), timeout=timeout_s)

    def held_call(self, *, timeout_s: float = CALL_S, **fields: Any) -> Any:
        """Begin a call; return once it is in the batch, which stands still from then on."""
        self._stopped = self.children()
        for child in self._stopped:
            os.kill(child, signal.SIGSTOP)
        call = self.call("A man.", timeout_s=timeout_s, **fields)
        wait_for_sample(self.ports, "dragoman_batch_live_segments 1.0")
        return call

    def go_on(self) -> None:
        """Let batches that stand still go on."""
        for child in self._stopped:
            if not is_gone(child):
                os.kill(child, signal.SIGCONT)

    def sample(self, name: str) -> float:
        """A metric of one sample, or of labels with one combination."""
        lines = [line for line in get(self.ports, "/metrics")[1].splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def request(*texts: str, **fields: Any) -> pb.TranslateRequest:
    return pb.TranslateRequest(texts=texts, source_language="en", target_language="de", **fields)


@contextmanager
def ready_server(models: Path, **environment: str) -> Iterator[Server]:
    with process("--models", str(models), **{**ONE_THREAD, **environment}) as running:
        ports = running.wait_until_ready(timeout_s=START_S)
        with connect(ports) as channel:
            server = Server(running, ports, channel)
            try:
                yield server
            finally:
                server.go_on()  # or it would not even notice that the server has gone


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with ready_server(tiny_model) as server:
        yield server


def parent_and_state(pid: int) -> tuple[int, str]:
    """Of a process; (0, "") if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[1]), fields[0]


def decoding_processes(parent: int) -> list[int]:
    """Children of a process that are no zombies, and run a program of their own: one that is stopped between its fork
    and that would stop its parent, too.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    children = [pid for pid in pids if (found := parent_and_state(pid))[0] == parent and found[1] != "Z"]
    return [pid for pid in children if command_line(pid) != command_line(parent)]


def command_line(pid: int) -> bytes:
    """The arguments of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    return parent_and_state(pid)[1] in {"", "Z"}


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds of processes, which tell only their parents."""
    until_s = time.monotonic() + STOP_S
    while not holds():
        assert time.monotonic() < until_s, f"never so: {what}"
        time.sleep(LOOK_EACH_S)


def code_name(call: Any) -> str:
    """How a call ends."""
    error = call.exception(timeout=CALL_S)
    return "OK" if error is None else str(error.code().name)


def restarts(server: Server) -> float:
    return server.sample(RESTARTS)


def test_there_is_one_process_for_a_version_whatever_the_number_of_decoding_threads(tiny_models: Path) -> None:
    with ready_server(tiny_models, DRAGOMAN_SCHEDULING__NUM_WORKERS="3") as server:
        assert code_name(server.call(*SENTENCES)) == "OK"

        assert len(server.children()) == 2
        commands = [Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in server.children()]
        assert all("dragoman_service.worker" in command for command in commands)


@pytest.mark.parametrize(("isolation", "niceness"), [("process", None), ("process", 7), ("none", None)])
def test_threads_that_answer_run_before_those_that_decode(
    tiny_model: Path, isolation: str, niceness: int | None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        usual, has_short = pool.submit(lambda: (slice_ns(), shorten_slices())).result()
    environment = {"DRAGOMAN_RUNTIME__ISOLATION": isolation}
    if niceness is not None:
        environment["DRAGOMAN_SCHEDULING__DECODING_NICENESS"] = str(niceness)
    lower = niceness if niceness is not None else 0 if has_short else 15

    with ready_server(tiny_model, **environment) as server:
        assert code_name(server.call("A man.")) == "OK"
        answering, *children = [
            {(slice_ns(thread), os.getpriority(os.PRIO_PROCESS, thread)) for thread in threads_of(pid)}
            for pid in (server.pid, *server.children())
        ]

    own = os.getpriority(os.PRIO_PROCESS, 0)
    decoding = (usual, min(own + lower, 19))
    assert ({100_000} if has_short else {usual}) <= {slice_ for slice_, _ in answering}
    assert decoding in (children or [answering])[0]
    assert all(slice_ == usual for child in children for slice_, _ in child)


def threads_of(pid: int) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


def test_there_is_none_without_isolation_and_the_answers_are_the_same_to_the_last_bit(tiny_model: Path) -> None:
    options = pb.DecodingOptions(beam_size=4, num_hypotheses=4, return_alignment=True)
    answers: list[pb.TranslateResponse] = []
    numbers = []
    for environment in ({}, LOCAL):
        with ready_server(tiny_model, **environment) as server:
            answers.append(server.call(*SENTENCES, options=options).result())
            numbers.append(len(server.children()))

    hosted, local = answers
    assert numbers == [1, 0]
    assert list(hosted.translations) == list(local.translations)
    assert {len(one.hypotheses) for one in hosted.translations} <= {3, 4}  # texts that are equal are returned once
    assert hosted.translations[0].hypotheses[0].score < 0


def test_without_isolation_there_are_no_metrics_of_a_process(tiny_model: Path) -> None:
    with ready_server(tiny_model, **LOCAL) as server:
        assert code_name(server.call("A man.")) == "OK"

        assert server.sample(RESIDENT_BYTES) == 0
        assert server.sample("dragoman_decoding_process_cpu_seconds_total") == 0


def test_what_the_process_takes_is_exposed(server: Server) -> None:
    assert code_name(server.call(*SENTENCES)) == "OK"

    assert server.sample(RESIDENT_BYTES) > 1 << 20
    assert server.sample("dragoman_decoding_process_cpu_seconds_total") > 0
    assert server.sample("dragoman_kv_cache_bytes{") > 0
    assert restarts(server) == 0


def test_a_call_in_the_batch_of_a_killed_process_is_internal_and_the_next_one_is_answered(server: Server) -> None:
    call, killed = server.held_call(), server.child()

    os.kill(killed, signal.SIGKILL)

    assert code_name(call) == "INTERNAL"
    assert code_name(server.call("A man.")) == "OK"
    assert restarts(server) == 1
    assert is_gone(killed)
    assert server.child() != killed
    assert server.sample("dragoman_batch_live_segments") == 0


@pytest.mark.slow
def test_a_stopped_process_is_killed_and_started_again_though_it_never_goes_on(tiny_model: Path) -> None:
    with ready_server(tiny_model, DRAGOMAN_SCHEDULING__MAX_STEP_S="3") as server:
        assert code_name(server.call("A man.")) == "OK"
        call, stopped = server.held_call(), server.child()

        assert code_name(call) == "INTERNAL"
        assert code_name(server.call("A man.")) == "OK"

        assert is_gone(stopped)
        assert server.sample('dragoman_decoding_process_failures_total{cause="no_step"}') == restarts(server) == 1
        assert server.sample('dragoman_decoding_process_failures_total{cause="ended"}') == 0
        assert server.sample("dragoman_batch_live_segments") == 0


def test_of_several_engines_one_that_is_killed_costs_its_own_calls_only(tiny_model: Path) -> None:
    with ready_server(tiny_model, DRAGOMAN_RUNTIME__NUM_REPLICAS="2") as server:
        children = server.children()
        assert len(children) == 2
        assert all(server.sample(f'{RESIDENT_BYTES}engine="{engine}"') > 1 << 20 for engine in range(2))
        calls = [server.held_call()]
        calls.append(server.call("A man."))
        wait_for_sample(server.ports, "dragoman_batch_live_segments 2.0")

        os.kill(children[0], signal.SIGKILL)
        wait_for_sample(server.ports, "dragoman_batch_live_segments 1.0")
        server.go_on()

        assert sorted(map(code_name, calls)) == ["INTERNAL", "OK"]
        assert {code_name(server.call("A man.")) for _ in range(4)} == {"OK"}
        assert is_gone(children[0])
        assert not is_gone(children[1])


def test_a_process_that_is_killed_while_idle_fails_no_call(server: Server) -> None:
    for number in (1, 2):
        os.kill(server.child(), signal.SIGKILL)
        server.running.wait_for("decoding process ended", timeout_s=STOP_S)

        assert code_name(server.call(*SENTENCES)) == "OK"
        assert restarts(server) == number
    assert server.sample('dragoman_requests_total{method="Translate",status="OK"}') == 2
    assert "Traceback" not in server.running.log


def test_calls_that_come_while_a_process_is_started_again_wait_for_it(tiny_model: Path) -> None:
    with ready_server(tiny_model, DRAGOMAN_SCHEDULING__NUM_WORKERS="3") as server:
        os.kill(server.child(), signal.SIGKILL)
        server.running.wait_for("decoding process ended", timeout_s=STOP_S)

        calls = [server.call(*SENTENCES) for _ in range(8)]

        assert [code_name(call) for call in calls] == ["OK"] * 8
        assert restarts(server) == 1


@pytest.mark.slow
def test_without_its_bundle_it_is_not_started_again_which_is_seen_and_with_it_the_next_call_starts_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(tiny_model, models)
    bundle, hidden = models / "tiny" / "1", tmp_path / "hidden"
    with ready_server(models, **UNTOUCHED) as server:
        bundle.rename(hidden)
        os.kill(server.child(), signal.SIGKILL)
        server.running.wait_for("decoding process ended", timeout_s=STOP_S)

        assert [code_name(server.call("A man.")) for _ in range(2)] == ["INTERNAL"] * 2
        assert server.sample(RESIDENT_BYTES) == 0
        assert server.children() == []

        hidden.rename(bundle)

        assert code_name(server.call("A man.")) == "OK"
        assert server.sample(RESIDENT_BYTES) > 1 << 20
        assert restarts(server) == 1


def test_a_killed_server_takes_its_process_with_it(server: Server) -> None:
    call = begin(server.channel, num_sentences=400)
    wait_until_in_flight(server.ports)
    child = server.child()

    server.running.send(signal.SIGKILL)

    until(lambda: is_gone(child), "the process that decodes has ended")
    assert code_name(call) == "UNAVAILABLE"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_to_all_processes_drains(server: Server, number: signal.Signals) -> None:
    call, child = server.held_call(), server.child()

    for pid in (child, server.pid):
        os.kill(pid, number)
    server.running.wait_for("draining", timeout_s=STOP_S)
    server.go_on()

    assert code_name(call) == "OK"
    assert server.running.wait(timeout_s=STOP_S) == 0
    assert is_gone(child)
    assert [word in server.running.log for word in ("stopped", "Traceback", "decoding process ended")] == [
        True,
        False,
        False,
    ]


class Group:
    """A server that leads a process group of its own, as one that a shell has started."""

    def __init__(self, models: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dragoman_service",
                "serve",
                "--grpc-port",
                "0",
                "--http-port",
                "0",
                "--models",
                str(models),
            ],
            cwd=CHECKOUT,
            env=inherited,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            process_group=0,
        )
        self._watchdog = threading.Timer(START_S, self.send, [signal.SIGKILL])
        self._watchdog.daemon = True
        self._watchdog.start()
        self.log = ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all who are in the group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def read_until(self, event: str) -> None:
        """Read its log up to the record of an event."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.log += line
            if f'"event": "{event}"' in line:
                return
        raise AssertionError(f"never logged: {event}\n{self.log}")

    def exit_code(self) -> int:
        assert self.process.stderr
        self.log += self.process.stderr.read()
        return self.process.wait(STOP_S)

    def close(self) -> None:
        self._watchdog.cancel()
        self.send(signal.SIGKILL)
        self.process.wait(STOP_S)
        assert self.process.stderr
        self.process.stderr.close()


@contextmanager
def group_of(models: Path) -> Iterator[Group]:
    group = Group(models)
    try:
        yield group
    finally:
        group.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_to_the_group_drains_and_the_exit_code_is_0(tiny_model: Path, number: signal.Signals) -> None:
    with group_of(tiny_model) as group:
        group.read_until("ready")

        group.send(number)

        assert group.exit_code() == 0
        assert [word in group.log for word in ("stopped", "Traceback", '"error"')] == [True, False, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.slow
def test_a_signal_to_the_group_while_a_process_is_being_started_ends_all(
    tiny_model: Path, number: signal.Signals
) -> None:
    with group_of(tiny_model) as group:
        group.read_until("listening")
        until(lambda: bool(decoding_processes(group.process.pid)), "a process that decodes is there")

        group.send(number)

        assert group.exit_code() == 0
        assert "Traceback" not in group.log


def test_a_process_that_is_stopped_while_it_loads_does_not_keep_the_server_from_ending(tiny_model: Path) -> None:
    with group_of(tiny_model) as group:
        group.read_until("listening")
        until(lambda: bool(decoding_processes(group.process.pid)), "a process that decodes is there")
        (child,) = decoding_processes(group.process.pid)
        os.kill(child, signal.SIGSTOP)

        group.send(signal.SIGTERM)

        assert group.exit_code() == 0
        until(lambda: is_gone(child), "the process that loads has ended")
        assert [word in group.log for word in ("stopped", "Traceback", '"error"')] == [True, False, False]


def test_the_process_of_an_unloaded_version_is_gone(tiny_models: Path) -> None:
    with ready_server(tiny_models, **UNTOUCHED) as server:
        before = server.children()

        server.admin.UnloadModel(pb.UnloadModelRequest(model="tiny/1"), timeout=CALL_S)

        (left,) = server.children()
        assert left in before
        assert code_name(server.call("A man.")) == "OK"
        assert "Traceback" not in server.running.log


def test_the_process_of_a_replaced_version_is_gone_and_the_new_one_has_its_own(
    tiny_models: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny" / "1", models / "tiny" / "1")
    (models / "tiny" / SERVING_NAME).write_text('versions = "latest:1"\n', encoding="utf-8")
    with ready_server(models, **WATCHFUL) as server:
        replaced = server.child()

        shutil.copytree(tiny_models / "tiny" / "2", models / "tiny" / ".2")
        (models / "tiny" / ".2").rename(models / "tiny" / "2")
        server.running.wait_for("model unloaded", timeout_s=START_S)

        assert is_gone(replaced)
        assert server.child() != replaced
        assert server.call("A man.", model="tiny").result().model_version == "2"
        assert restarts(server) == 0
        assert "decoding process ended" not in server.running.log


@pytest.mark.slow
def test_a_server_that_is_stopped_while_a_version_is_unloaded_ends_as_without(tiny_models: Path) -> None:
    with ready_server(tiny_models, **UNTOUCHED) as server:
        children, call = server.children(), server.held_call(model="tiny/1")
        unloading = server.admin.UnloadModel.future(pb.UnloadModelRequest(model="tiny/1"), timeout=CALL_S)
        wait_for_sample(server.ports, 'dragoman_model_state{model="tiny",state="draining",version="1"} 1.0')

        server.running.send(signal.SIGTERM)
        server.running.wait_for("draining", timeout_s=STOP_S)
        server.running.send(signal.SIGTERM)

        assert code_name(call) == "UNAVAILABLE"
        server.go_on()
        assert server.running.wait(timeout_s=STOP_S) == 1
        assert unloading.exception(timeout=CALL_S) is None or code_name(unloading) == "UNAVAILABLE"
        assert [word in server.running.log for word in ("stopped", "Traceback")] == [True, False]
        assert all(map(is_gone, children))


def failed_start(models: Path, **environment: str) -> tuple[int, str]:
    """Return exit code and last line of a server that cannot start."""
    with process("--models", str(models), **environment) as running:
        code = running.wait(timeout_s=STOP_S)
        assert "Traceback" not in running.log
        return code, running.log.splitlines()[-1]


def test_a_precision_that_is_not_there_is_the_same_message_as_without_isolation(tiny_model: Path) -> None:
    wanted = {"DRAGOMAN_RUNTIME__PRECISION": "int8"}

    hosted, local = (failed_start(tiny_model, **wanted, **environment) for environment in ({}, LOCAL))

    assert hosted == local
    assert "int8" in hosted[1]


@pytest.mark.parametrize("damage", ["graph", "weights", "manifest"])
def test_a_broken_bundle_is_the_same_message_as_without_isolation(
    tiny_model: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(tiny_model / "tiny", tmp_path / "tiny")
    pattern = {"graph": "*.onnx", "weights": "*weights*", "manifest": "manifest.json"}[damage]
    for path in sorted((tmp_path / "tiny" / "1").rglob(pattern)):
        path.write_bytes(b"damaged" + path.read_bytes()[7:])

    hosted, local = (failed_start(tmp_path, **environment) for environment in ({}, LOCAL))

    assert hosted == local
    assert hosted[0] != 0


def test_a_process_of_other_files_than_the_server_s_says_that_it_must_be_restarted(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        dragoman_service.worker.supervisor, "format_digest", lambda _: "of a server that was started before"
    )
    command = LoadCommand(
        directory=tiny_model / "tiny" / "1", settings=RuntimeSettings(), niceness=0, log_level=logging.WARNING
    )

    with pytest.raises(EngineError, match="restart the server"):
        DecodingProcess(command, name="tiny/1", module="dragoman_service.worker", on_end=lambda _: None)


def test_a_deadline_that_passes_in_the_middle_of_decoding_frees_the_batch(server: Server) -> None:
    assert code_name(server.call("A man.")) == "OK"

    call = server.held_call(timeout_s=DEADLINE_S)
    assert code_name(call) == "DEADLINE_EXCEEDED"
    server.go_on()

    wait_for_sample(server.ports, "dragoman_batch_live_segments 0.0")
    missed = ('dragoman_deadline_misses_total{stage="decode"}', 'dragoman_cancelled_segments_total{stage="decode"}')
    assert sum(map(server.sample, missed)) == 1  # on the side that noticed it first
    assert code_name(server.call("A man.")) == "OK"
    assert restarts(server) == 0


def test_a_call_that_is_cancelled_in_the_middle_of_decoding_frees_the_batch(server: Server) -> None:
    call = server.held_call()
    call.cancel()
    wait_for_sample(server.ports, 'dragoman_segments_total{outcome="cancelled"} 1.0')
    server.go_on()

    wait_for_sample(server.ports, "dragoman_batch_live_segments 0.0")
    assert code_name(server.call("A man.")) == "OK"
    assert server.sample('dragoman_cancelled_segments_total{stage="decode"}') == 1
    assert restarts(server) == 0
