"""A quota store for tests: redis-server on a Unix socket, which the test can stop and suspend."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

START_S = 30.0  # only reached by a test that would otherwise hang
_LOOK_EACH_S = 0.01


class RedisServer:
    """A store without persistence."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.socket = directory / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._options = ("--port", "0", *options)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        kept_nowhere = ("--save", "", "--appendonly", "no", "--dir", str(self._directory), "--daemonize", "no")
        command = ["redis-server", "--unixsocket", str(self.socket), *kept_nowhere, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < until_s, "redis-server never answered"
            time.sleep(_LOOK_EACH_S)
        return self

    def stop(self) -> None:
        """Kill the server; its data is lost."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """Suspend the server; its connections stay open."""
        assert self._process
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """Yield a connection with all permissions."""
        with contextlib.closing(redis.Redis(unix_socket_path=str(self.socket))) as client:
            yield client

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a Redis server; skip the test if redis-server is not installed."""
    if shutil.which("redis-server") is None:
        assert not os.environ.get("CI"), "CI must have redis-server: see .ci/run"
        pytest.skip("redis-server is not installed (Debian: the package redis-server)")
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:  # paths of sockets must be short
        server = RedisServer(Path(directory), *options).start()
        try:
            yield server
        finally:
            server.stop()
