"""Signals during the start, also to the first process of a container, and closed standard streams."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman_service.datatypes import Ports
from dragoman_service.signals import DRAIN_SIGNALS
from tests.integration.real_process import STOP_S, free_ports, get
from tests.waiting import wait_until

SERVE = (sys.executable, "-m", "dragoman_service", "serve", "--fake", "--grpc-port", "0", "--http-port", "0")
_UNSHARE = shutil.which("unshare")
_CONTAINER = (_UNSHARE or "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_HAS_NAMESPACES = _UNSHARE is not None and subprocess.run([*_CONTAINER, "true"], check=False).returncode == 0
in_namespace = pytest.mark.skipif(not _HAS_NAMESPACES, reason="creating a PID namespace is not allowed")


@contextmanager
def first_process() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server as process 1 of a PID namespace; yield its parent and its id outside."""
    with subprocess.Popen([*_CONTAINER, *SERVE], stderr=subprocess.DEVNULL) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        wait_until(children.read_text)
        try:
            yield parent, int(children.read_text())
        finally:
            parent.kill()


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has its own handler of a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@in_namespace
@pytest.mark.parametrize("number", DRAIN_SIGNALS, ids=lambda number: number.name)
def test_signal_ends_the_first_process_before_it_imports_libraries(number: signal.Signals) -> None:
    with first_process() as (parent, pid):
        wait_until(lambda: handles(pid, signal.SIGTERM))
        assert "cygrpc" not in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

        os.kill(pid, number)

        assert parent.wait(STOP_S) == 0


def test_server_of_nohup_continues_after_a_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited
    with subprocess.Popen(SERVE, stderr=subprocess.DEVNULL) as server:
        wait_until(lambda: handles(server.pid, signal.SIGTERM))

        assert not handles(server.pid, signal.SIGHUP)

        server.terminate()


@pytest.mark.slow
@in_namespace
@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.4, 0.6, 0.9, 1.2, 1.6, 2.0, 3.0])
def test_signal_ends_the_first_process_at_any_moment_of_the_start(delay_s: float) -> None:
    with first_process() as (parent, pid):
        wait_until(lambda: handles(pid, signal.SIGTERM))
        time.sleep(delay_s)

        os.kill(pid, signal.SIGTERM)

        assert parent.wait(STOP_S) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_run_without_standard_streams(closed: str) -> None:
    command = f'exec "{sys.executable}" -m dragoman_service --help {closed}'

    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_server_without_standard_streams_drains_cleanly(closed: str) -> None:
    grpc_port, http_port = free_ports(2)
    ports = Ports(grpc_port=grpc_port, http_port=http_port, metrics_port=http_port)
    flags = f"--grpc-port {grpc_port} --http-port {http_port}"
    command = f'exec "{sys.executable}" -m dragoman_service serve --fake {flags} {closed}'
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_until(lambda: get(ports, "/readyz")[0] == 200)

        server.terminate()

        assert server.wait(STOP_S) == 0
