"""A container that is tested, and the engine it runs on."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 60.0
"""Only reached by what fails anyway."""


class CheckError(Exception):
    """A promise that the image does not keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The client of a container engine, and an image there."""

    client: str
    image: str

    def call(self, *words: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the client.

        Raises:
            CheckError: if it fails and `is_checked`.
        """
        finished = subprocess.run([self.client, *words], capture_output=True, text=True, check=False)  # noqa: S603
        if is_checked and finished.returncode != 0:
            raise CheckError(f"docker {' '.join(words)}: exit code {finished.returncode}: {finished.stderr.strip()}")
        return finished

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of an image or container."""
        (found,) = json.loads(self.call("inspect", name).stdout)
        return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container of the image with two published ports of this machine."""

    engine: Engine
    name: str
    started_s: float
    """By the monotonic clock."""

    def address(self, port: int) -> str:
        """Return where a port of the container is published."""
        return self.engine.call("port", self.name, f"{port}/tcp").stdout.split()[0]

    @property
    def state(self) -> dict[str, Any]:
        """What the engine says of it: `Status`, `ExitCode`, `Health` and so on."""
        return dict(self.engine.inspect(self.name)["State"])

    def wait_for(self, is_reached: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> float:
        """Wait; return the seconds since the container was started.

        Raises:
            CheckError: if it ends, or the time runs out.
        """
        until_s = time.monotonic() + timeout_s
        while not is_reached():
            if time.monotonic() > until_s:
                raise CheckError(f"{self.name} is not {what} within {timeout_s:g} s; it is {self.state['Status']}")
            time.sleep(0.05)
        return time.monotonic() - self.started_s

    def is_healthy(self) -> bool:
        """Whether the health check of the image has passed."""
        return str(self.state["Health"]["Status"]) == "healthy"

    def is_serving(self) -> bool:
        """Whether it takes calls, asked from outside."""
        with grpc.insecure_channel(self.address(50051)) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples, over all labels."""
        with urllib.request.urlopen(f"http://{self.address(9464)}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)
