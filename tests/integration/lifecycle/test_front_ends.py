"""A server with several front-end processes: exact limits, a killed front end, drain, metrics, models.

A worker that is stopped (SIGSTOP) keeps its segments unanswered, so that no test depends on its speed.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.security.api_keys import new_key
from tests.integration.real_process import (
    CALL_S,
    START_S,
    STOP_S,
    command_line,
    connect,
    get,
    is_gone,
    process,
    until,
    worker_processes,
)
from tests.integration.running_server import bearer, caller_entry, request, running_server

NUM_CHANNELS = 16  # the kernel assigns a connection to a process by a hash of its ports: 1 in 32,768 misses one
ONE_THREAD = {
    "DRAGOMAN_SCHEDULING__NUM_WORKERS": "1",
    "DRAGOMAN_SCHEDULING__MAX_BATCH_SEGMENTS": "1",
    "DRAGOMAN_SCHEDULING__MAX_STEP_S": "3600",  # a stopped worker is not killed
}
TEXTS = ("A man rides a bicycle.", "Two dogs are running. A child plays in the park.", "Hello {name}!")


class Server:
    """A ready server with two front ends, and a connection for each of many channels."""

    def __init__(self, running: ServerProcess, channels: contextlib.ExitStack) -> None:
        self.running = running
        self.ports = running.wait_until_ready(timeout_s=START_S)
        self.channels = [channels.enter_context(connect(self.ports)) for _ in range(NUM_CHANNELS)]
        self.stubs = [pb_grpc.TranslationServiceStub(channel) for channel in self.channels]
        self.admins = [pb_grpc.ModelAdminServiceStub(channel) for channel in self.channels]

    def begin(self, text: str = TEXTS[0], *, num_calls: int = NUM_CHANNELS, key: str | None = None) -> list[Any]:
        """Begin a call on each of the first channels."""
        return [
            stub.Translate.future(request(text), timeout=CALL_S, metadata=bearer(key))
            for stub in self.stubs[:num_calls]
        ]

    def children(self, module: str) -> list[int]:
        """Return the child processes that run a module."""
        return [pid for pid in worker_processes(self.running.pid) if module.encode() in command_line(pid)]

    @contextlib.contextmanager
    def halted_worker(self) -> Iterator[None]:
        """Stop the worker processes."""
        workers = self.children("dragoman_service.worker")
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGCONT)

    def sample(self, name: str) -> float:
        """Return a sample of the metrics of all processes; 0 if it does not exist."""
        lines = dict(line.rsplit(" ", 1) for line in get(self.ports, "/metrics")[1].splitlines() if line[0] != "#")
        return float(lines.get(name, 0))

    def until_sample(self, name: str, value: float) -> None:
        until(lambda: self.sample(name) == value, f"{name} is {value}")

    def front_ends_of_calls(self) -> list[int]:
        """Return the front end of each request in the log."""
        records = map(json.loads, filter(lambda line: line.startswith("{"), self.running.log.splitlines()))
        return [record["front_end"] for record in records if record["event"] == "request"]


@contextlib.contextmanager
def running(models: Path, **environment: str) -> Iterator[Server]:
    flags = ("--models", str(models), "--processes", "2")
    with process(*flags, **environment) as server, contextlib.ExitStack() as channels:
        yield Server(server, channels)


@pytest.fixture(scope="module")
def shared(tiny_models: Path) -> Iterator[Server]:
    """A server for tests that leave nothing behind."""
    with running(tiny_models, **ONE_THREAD, DRAGOMAN_GRPC__MAX_CONCURRENT_REQUESTS="4") as server:
        yield server


def codes(calls: list[Any]) -> list[grpc.StatusCode]:
    """Wait for calls and return their statuses."""
    return [call.code() for call in calls]


def is_serving(channel: grpc.Channel) -> bool:
    response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_S)
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def num_done(calls: list[Any]) -> int:
    return sum(call.done() for call in calls)


def without_timings(response: Any) -> Any:
    response.ClearField("timings")
    response.ClearField("request_id")
    return response


async def test_results_of_all_front_ends_equal_those_of_one_process(shared: Server, tiny_models: Path) -> None:
    async with running_server(tiny_models) as single:
        expected = [without_timings(await single.translate(text)) for text in TEXTS]
        document = pb.TranslateDocumentRequest(text=" ".join(TEXTS), source_language="en", target_language="de")
        sentences = [without_timings(one) async for one in single.translation.TranslateDocument(document)]
        models = await single.model_service.ListModels(pb.ListModelsRequest())
    num_before = shared.sample('dragoman_requests_total{method="Translate",status="OK"}')

    for stub, channel in zip(shared.stubs, shared.channels, strict=True):
        assert [without_timings(stub.Translate(request(text))) for text in TEXTS] == expected
        assert list(map(without_timings, stub.TranslateDocument(document))) == sentences
        listed = pb_grpc.ModelServiceStub(channel).ListModels(pb.ListModelsRequest())
        assert [model.versions for model in listed.models] == [model.versions for model in models.models]

    num_calls = NUM_CHANNELS * len(TEXTS)
    shared.until_sample('dragoman_requests_total{method="Translate",status="OK"}', num_before + num_calls)
    shared.until_sample('dragoman_requests_in_flight{method="Translate"}', 0)
    until(lambda: set(shared.front_ends_of_calls()) == {1, 2}, "both front ends log calls")
    status, page = get(shared.ports, "/metrics?name[]=dragoman_front_ends")
    assert (status, [line for line in page.splitlines() if line[0] != "#"]) == (200, ["dragoman_front_ends 2.0"])


def test_stream_is_answered(shared: Server) -> None:
    requests = [request(text, request_id=str(number)) for number, text in enumerate(TEXTS)]

    responses = list(shared.stubs[0].TranslateStream(iter(requests), timeout=CALL_S))

    assert sorted(response.request_id for response in responses) == ["0", "1", "2"]
    assert all(response.translations for response in responses)


def test_http_api_is_served_by_the_owner(shared: Server) -> None:
    body = json.dumps({"texts": [TEXTS[0]], "source_language": "en", "target_language": "de"}).encode()
    url = f"http://127.0.0.1:{shared.ports.http_port}/v1/translate"
    response = httpx.post(url, content=body, headers={"content-type": "application/json"}, trust_env=False)
    assert response.json()["translations"]


def test_concurrency_limit_holds_for_all_processes_together(shared: Server) -> None:
    with shared.halted_worker():
        calls = shared.begin()
        until(lambda: num_done(calls) == NUM_CHANNELS - 4, "all calls but four are rejected")
        rejected = [call for call in calls if call.done()]
        assert {call.code() for call in rejected} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "limit of 4 concurrent requests" in rejected[0].details()

    assert codes(calls).count(grpc.StatusCode.OK) == 4


def test_cancelled_call_frees_its_place_in_the_queue(shared: Server) -> None:
    with shared.halted_worker():
        calls = shared.begin(num_calls=4)
        shared.until_sample("dragoman_queue_segments", 3)

        for call in calls:
            call.cancel()

        shared.until_sample("dragoman_queue_segments", 0)
    until(lambda: shared.sample("dragoman_batch_live_segments") == 0, "the batch is empty")
    assert shared.stubs[0].Translate(request(TEXTS[0]), timeout=CALL_S).translations


def test_loaded_and_unloaded_models_change_in_all_front_ends_at_once(shared: Server) -> None:
    for admin in shared.admins[:4]:
        admin.UnloadModel(pb.UnloadModelRequest(model="tiny/2"), timeout=CALL_S)
        for stub in shared.stubs:
            with pytest.raises(grpc.RpcError) as caught:
                stub.Translate(request(TEXTS[0], model="tiny/2"), timeout=CALL_S)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        admin.LoadModel(pb.LoadModelRequest(model="tiny/2"), timeout=CALL_S)
        admin.SetModelLabel(pb.SetModelLabelRequest(model="tiny/2", label="next"), timeout=CALL_S)
        for stub in shared.stubs:
            assert stub.Translate(request(TEXTS[0], model="tiny@next"), timeout=CALL_S).model_version == "2"


def test_unload_waits_for_the_calls_of_a_front_end(shared: Server) -> None:
    with shared.halted_worker():
        call = shared.stubs[0].Translate.future(request(TEXTS[0], model="tiny/2"), timeout=CALL_S)
        shared.until_sample("dragoman_batch_live_segments", 1)
        unloading = shared.admins[1].UnloadModel.future(pb.UnloadModelRequest(model="tiny/2"), timeout=CALL_S)
        shared.until_sample('dragoman_model_state{model="tiny",state="draining",version="2"}', 1)
        assert not unloading.done()

    assert call.result().model_version == "2"
    unloading.result()
    shared.admins[2].LoadModel(pb.LoadModelRequest(model="tiny/2"), timeout=CALL_S)


def test_quotas_hold_for_all_processes_together(tiny_model: Path, tmp_path: Path) -> None:
    once, words = new_key(), new_key()
    callers = tmp_path / "callers.toml"
    entries = caller_entry("once", once, requests_per_s=0.001), caller_entry("words", words, tokens_per_min=0.06)
    callers.write_text("".join(entries), encoding="utf-8")
    with running(tiny_model, DRAGOMAN_ACCESS__CALLERS_FILE=str(callers)) as server:
        for key, unit in ((once, "0.001 requests/s"), (words, "0.06 source tokens/min")):
            calls = server.begin(key=key)

            rejected = [call for call in calls if call.code() is not grpc.StatusCode.OK]
            assert len(rejected) == NUM_CHANNELS - 1
            assert {call.code() for call in rejected} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert f"is limited to {unit}" in rejected[0].details()

        with pytest.raises(grpc.RpcError) as caught:
            server.stubs[0].Translate(request(TEXTS[0]), timeout=CALL_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_queue_limit_holds_for_all_processes_together(tiny_model: Path) -> None:
    limits = {
        "DRAGOMAN_SCHEDULING__MAX_QUEUE_SEGMENTS": "8",
        "DRAGOMAN_SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",
        "DRAGOMAN_LIMITS__MAX_REQUEST_SENTENCES": "8",
    }
    with running(tiny_model, **ONE_THREAD, **limits) as server:
        with server.halted_worker():
            first = server.begin(num_calls=1)
            server.until_sample("dragoman_batch_live_segments", 1)
            calls = server.begin()
            until(lambda: num_done(calls) == NUM_CHANNELS - 8, "all calls but eight are rejected")
            assert server.sample("dragoman_queue_segments") == 8
            rejected = [call for call in calls if call.done()]
            assert {call.code() for call in rejected} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert server.sample('dragoman_rejected_requests_total{reason="overloaded"}') == NUM_CHANNELS - 8

        assert codes(first) == [grpc.StatusCode.OK]
        assert codes(calls).count(grpc.StatusCode.OK) == 8


def test_killed_front_end_loses_only_its_calls_and_is_restarted(tiny_model: Path) -> None:
    limit = {"DRAGOMAN_GRPC__MAX_CONCURRENT_REQUESTS": str(NUM_CHANNELS)}
    with running(tiny_model, **ONE_THREAD, **limit) as server:
        for call in server.begin():
            call.result()
        answered = 'dragoman_requests_total{method="Translate",status="OK"}'
        server.until_sample(answered, NUM_CHANNELS)
        front_end, other = server.children("dragoman_service.front_end")
        with server.halted_worker():
            calls = server.begin()
            server.until_sample("dragoman_queue_segments", NUM_CHANNELS - 1)

            os.kill(front_end, signal.SIGKILL)

            server.until_sample("dragoman_front_end_restarts_total", 1)
            lost = [call for call in calls if call.done()]
            assert 0 < len(lost) < NUM_CHANNELS
            assert set(codes(lost)) == {grpc.StatusCode.UNAVAILABLE}
            # The segment in the batch may be a lost one, whose place is free at the next report of the batch.
            num_queued = server.sample("dragoman_queue_segments")
            assert num_queued in (NUM_CHANNELS - len(lost) - 1, NUM_CHANNELS - len(lost))
            server.until_sample("dragoman_front_ends", 2)
            assert server.sample(answered) == NUM_CHANNELS
            retried = [stub.Translate.future(request(TEXTS[0]), timeout=CALL_S) for stub in server.stubs[: len(lost)]]
            server.until_sample("dragoman_queue_segments", num_queued + len(lost))
            over = server.begin(num_calls=1)
            assert codes(over) == [grpc.StatusCode.RESOURCE_EXHAUSTED]

        assert codes([call for call in calls if call not in lost]) == [grpc.StatusCode.OK] * (NUM_CHANNELS - len(lost))
        assert codes(retried) == [grpc.StatusCode.OK] * len(lost)
        assert other in server.children("dragoman_service.front_end")
        server.until_sample(answered, 2 * NUM_CHANNELS)


def test_drain_answers_the_admitted_calls_of_all_front_ends(tiny_model: Path) -> None:
    with running(tiny_model, **ONE_THREAD) as server:
        with server.halted_worker():
            calls = server.begin()
            server.until_sample("dragoman_queue_segments", NUM_CHANNELS - 1)

            server.running.send(signal.SIGTERM)
            until(lambda: not any(map(is_serving, server.channels)), "no front end is serving")
            assert set(codes(server.begin())) == {grpc.StatusCode.UNAVAILABLE}

        assert codes(calls) == [grpc.StatusCode.OK] * NUM_CHANNELS
        assert server.running.wait(timeout_s=STOP_S) == 0
        assert sorted(set(server.front_ends_of_calls())) == [1, 2]


def test_front_ends_end_with_their_owner(tiny_model: Path) -> None:
    with running(tiny_model, **ONE_THREAD) as server:
        front_ends = server.children("dragoman_service.front_end")

        server.running.send(signal.SIGKILL)

        until(lambda: all(map(is_gone, front_ends)), "the front ends are gone")


def test_second_server_cannot_share_the_port(tiny_model: Path, shared: Server) -> None:
    flags = ("--models", str(tiny_model), "--processes", "2", "--grpc-port", str(shared.ports.grpc_port))
    with process(*flags) as second:
        assert second.wait(timeout_s=START_S) == 2
        assert "setting 'grpc.port'" in second.log


def test_front_end_that_cannot_start_fails_the_start(tiny_model: Path, tmp_path: Path) -> None:
    failing = "import sys\nif 'dragoman_service.front_end' in sys.orig_argv: sys.exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(failing, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))
    with process("--models", str(tiny_model), "--processes", "2", PYTHONPATH=path) as server:
        assert server.wait(timeout_s=START_S) == 1
        assert "exited before it was ready" in server.log
