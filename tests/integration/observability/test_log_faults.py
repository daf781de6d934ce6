"""A server process with an unwritable log answers calls and exits normally."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.real_process import CHECKOUT, START_S, STOP_S
from tests.integration.running_server import request

NUM_CALLS = 40  # some 400 bytes of log each
PIPE_BYTES = 4096


@contextmanager
def server(models: Path, stderr: int) -> Iterator[tuple[subprocess.Popen[bytes], pb_grpc.TranslationServiceStub]]:
    """Start a server on a Unix socket, as the port cannot be read from the log."""
    with tempfile.TemporaryDirectory(prefix="log-") as directory:
        address = f"unix:{directory}/s"
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman_service", "serve", "--models", str(models), "--http-port", "0"],
            cwd=CHECKOUT,
            env={**os.environ, "DRAGOMAN_GRPC__HOST": address},
            stderr=stderr,
        )
        try:
            with grpc.insecure_channel(address) as channel:
                wait_until_serving(channel)
                yield process, pb_grpc.TranslationServiceStub(channel)
        finally:
            process.kill()
            process.wait()


def wait_until_serving(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for state in health.Watch(health_pb2.HealthCheckRequest(), timeout=START_S, wait_for_ready=True):
        if state.status == health_pb2.HealthCheckResponse.SERVING:
            return


@contextmanager
def full_disk() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def full_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield writer
    os.close(writer)
    os.close(reader)


@pytest.mark.parametrize("log", [full_disk, full_pipe], ids=lambda log: log.__name__)
@pytest.mark.slow
def test_calls_and_drain_complete_if_the_log_cannot_be_written(
    tiny_model: Path, log: Callable[[], AbstractContextManager[int]]
) -> None:
    with log() as stderr, server(tiny_model, stderr) as (process, stub):
        answers = [stub.Translate(request("A man."), timeout=START_S) for _ in range(NUM_CALLS)]

        process.terminate()

        assert all(len(answer.translations) == 1 for answer in answers)
        assert process.wait(STOP_S) == 0
