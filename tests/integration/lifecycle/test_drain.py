"""SIGTERM to the real process with calls in progress, idle connections and a second signal."""

import os
import queue
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.datatypes import Ports
from dragoman_service.signals import UNUSED_SIGNALS
from tests.integration.real_process import (
    CALL_S,
    CHECKOUT,
    ONE_BY_ONE,
    START_S,
    STOP_S,
    begin,
    connect,
    get,
    is_gone,
    long_request,
    process,
    wait_for_sample,
    wait_until_in_flight,
    worker_processes,
)
from tests.waiting import wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def ready_server(models: Path, **environment: str) -> Iterator[tuple[ServerProcess, Ports]]:
    with process("--models", str(models), **environment) as server:
        yield server, server.wait_until_ready(timeout_s=START_S)


def drain(server: ServerProcess) -> None:
    """Send SIGTERM and wait until the server logs it."""
    server.send(signal.SIGTERM)
    server.wait_for("draining", timeout_s=STOP_S)


def watch_health(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


def reason(error: grpc.RpcError) -> tuple[str, str]:
    """Return the status and the reason of a failed call."""
    info = error_details_pb2.ErrorInfo()
    (detail,) = rpc_status.from_call(error).details
    assert detail.Unpack(info)
    return error.code().name, info.reason


def test_draining_server_closes_its_port_and_finishes_calls(tiny_model: Path) -> None:
    settings = {**ONE_BY_ONE, "DRAGOMAN_GRPC__DRAIN_TIMEOUT_S": "240"}
    with ready_server(tiny_model, **settings) as (server, ports), connect(ports) as channel:
        watcher = watch_health(channel)
        seen = [next(watcher).status]
        call = begin(channel, num_sentences=20)
        wait_until_in_flight(ports)

        drain(server)

        seen.append(next(watcher).status)
        with pytest.raises(grpc.RpcError) as rejected:
            pb_grpc.TranslationServiceStub(channel).Translate(long_request(1))
        assert rejected.value.code() is grpc.StatusCode.UNAVAILABLE
        assert [get(ports, path)[0] for path in ("/readyz", "/healthz")] == [503, 200]
        assert seen == [SERVING, NOT_SERVING]
        assert not call.done()
        assert len(call.result().translations[0].sentences) == 20
        assert server.wait(timeout_s=STOP_S) == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name)
def test_signals_of_a_terminal_drain_the_server_and_others_do_nothing(tiny_model: Path, number: signal.Signals) -> None:
    with ready_server(tiny_model, **ONE_BY_ONE) as (server, ports), connect(ports) as channel:
        call = begin(channel, num_sentences=20)
        wait_until_in_flight(ports)
        for unused in UNUSED_SIGNALS:
            server.send(unused)

        for child in psutil.Process(server.pid).children(recursive=True):
            child.send_signal(number)  # a terminal sends it to all processes
        server.send(number)

        server.wait_for("draining", timeout_s=STOP_S)
        assert len(call.result().translations[0].sentences) == 20
        assert server.wait(timeout_s=STOP_S) == 0


def test_idle_connections_and_streams_do_not_delay_the_exit(tiny_model: Path) -> None:
    with ready_server(tiny_model) as (server, ports), ExitStack() as stack:
        channels = [stack.enter_context(connect(ports)) for _ in range(8)]
        for channel in channels:
            grpc.channel_ready_future(channel).result(timeout=START_S)
        assert next(watch_health(channels[0])).status == SERVING
        stack.enter_context(socket.create_connection(("127.0.0.1", ports.http_port)))  # sends nothing
        requests: queue.SimpleQueue[pb.TranslateRequest | None] = queue.SimpleQueue()
        stack.callback(requests.put, None)  # half-closes the stream
        stream = pb_grpc.TranslationServiceStub(channels[1]).TranslateStream(iter(requests.get, None), timeout=CALL_S)
        wait_for_sample(ports, "dragoman_open_streams 1.0")

        server.send(signal.SIGTERM)

        assert reason(stream.exception()) == ("UNAVAILABLE", "DRAINING")
        assert server.wait(timeout_s=STOP_S) == 0
        assert "timed out" not in server.log


def test_drain_timeout_fails_remaining_calls(tiny_model: Path) -> None:
    settings = {**ONE_BY_ONE, "DRAGOMAN_GRPC__DRAIN_TIMEOUT_S": "0.05"}
    with ready_server(tiny_model, **settings) as (server, ports), connect(ports) as channel:
        call = begin(channel, num_sentences=400)
        wait_until_in_flight(ports)

        server.send(signal.SIGTERM)

        assert reason(call.exception()) == ("UNAVAILABLE", "DRAINING")
        assert server.wait(timeout_s=STOP_S) == 1
        assert "drain timed out" in server.log


def test_second_signal_stops_at_once(tiny_model: Path) -> None:
    with ready_server(tiny_model, **ONE_BY_ONE) as (server, ports), connect(ports) as channel:
        call = begin(channel, num_sentences=400)
        wait_until_in_flight(ports)
        drain(server)

        server.send(signal.SIGTERM)

        assert reason(call.exception()) == ("UNAVAILABLE", "DRAINING")
        assert server.wait(timeout_s=STOP_S) == 1
        assert "timed out" not in server.log


# module that Python imports at startup; text planning then blocks a thread forever
BLOCKED_PLANNER = """
import sys
if "serve" in sys.orig_argv:
    import time
    from dragoman_service.text.planning import TextPlanner

    def blocked(planner, plan=TextPlanner.plan):
        if sum(map(len, planner._request.texts)) < 2000:  # as when the server warms up
            return plan(planner)
        print('{"event": "blocked"}', file=sys.stderr, flush=True)
        time.sleep(1e6)

    TextPlanner.plan = blocked
"""


def test_hanging_thread_does_not_keep_the_process(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED_PLANNER, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), str(CHECKOUT / "proto"), str(CHECKOUT)))
    settings = {"PYTHONPATH": path, "DRAGOMAN_GRPC__DRAIN_TIMEOUT_S": "0.5"}
    with ready_server(tiny_model, **settings) as (server, ports), connect(ports) as channel:
        (child,) = worker_processes(server.pid)
        call = begin(channel, num_sentences=100)  # so long that it is split in a thread
        server.wait_for("blocked", timeout_s=START_S)

        server.send(signal.SIGTERM)

        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait(timeout_s=STOP_S) == 1
        assert "drain timed out" in server.log
        wait_until(lambda: is_gone(child))
