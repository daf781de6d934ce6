"""A container engine with the CPU image, and containers of that image."""

import contextlib
import json
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.client import TlsOptions, TranslationClient
from loadtests.generator.metrics import scrape
from tests.e2e.tools import run
from tests.waiting import wait_until

TEXT: Final = "The weather is nice today."
TRANSLATED_WORD: Final = "Wetter"
_LONG_TEXTS: Final = ["A man rides a bicycle through the old town while two dogs run behind him. " * 12] * 64
_TIMEOUT_S: Final = 60.0


def translate(target: str, *, tls: TlsOptions | None = None, api_key: str | None = None, timeout_s: float = 60) -> str:
    """Translate one text and return the translation."""
    with TranslationClient(target, api_key=api_key, tls=tls, timeout_s=timeout_s) as client:
        (translation,) = client.translate([TEXT], source_language="en", target_language="de")
    return translation.text


def post_text(url: str, *, api_key: str | None = None, authority: bytes | None = None) -> httpx.Response:
    """Send one text to the HTTP API, with TLS if an authority to trust is given."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"texts": [TEXT], "sourceLanguage": "en", "targetLanguage": "de"}
    tls = ssl.create_default_context(cadata=authority.decode()) if authority else True
    return httpx.post(
        f"{url}/v1/translate", json=body, headers=headers, verify=tls, timeout=_TIMEOUT_S, trust_env=False
    )


def is_serving(target: str) -> bool:
    """Return whether the server is healthy."""
    with grpc.insecure_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.contextmanager
def long_call(target: str, is_in_flight: Callable[[], bool], *, api_key: str | None = None) -> Iterator[None]:
    """Run the body while a long call is in flight; then assert that the call is answered."""
    with (
        TranslationClient(target, api_key=api_key, timeout_s=_TIMEOUT_S) as client,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        call = pool.submit(client.translate, _LONG_TEXTS, source_language="en", target_language="de")
        wait_until(is_in_flight, timeout_s=_TIMEOUT_S)
        assert not call.done()
        yield
        assert all(translation.text for translation in call.result())


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The client of a container engine that has the CPU image."""

    client: str
    image: str
    base_image: str  # empty for the default of the Dockerfile
    environment: Mapping[str, str]

    def call(self, *words: str | Path, is_checked: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the client; unless `is_checked` is false, assert exit code 0."""
        return run(self.client, *words, is_checked=is_checked, env=self.environment, **options)

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the description of an image or a container."""
        return dict(json.loads(self.call("inspect", name).stdout)[0])

    @contextlib.contextmanager
    def container(self, *options: str) -> Iterator["Container"]:
        """Run the image with two published ports on a network of its own; print the log if the test fails."""
        name = f"dragoman-test-{uuid.uuid4().hex[:8]}"
        self.call("network", "create", name)
        published = [word for port in (50051, 8080, 9464) for word in ("--publish", f"127.0.0.1::{port}")]
        started_s = time.monotonic()
        try:
            self.call("run", "--detach", "--name", name, "--network", name, *published, *options, self.image)
            yield Container(engine=self, name=name, started_s=started_s)
        except BaseException:
            log = self.call("logs", "--tail", "40", name, is_checked=False)
            print(log.stdout + log.stderr)
            raise
        finally:
            self.call("rm", "--force", name, is_checked=False)
            self.call("network", "rm", name, is_checked=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container."""

    engine: Engine
    name: str
    started_s: float  # monotonic clock

    def address(self, port: int) -> str:
        """Return the published address of a port."""
        return self.engine.call("port", self.name, f"{port}/tcp").stdout.split()[0]

    @property
    def state(self) -> dict[str, Any]:
        """`Status`, `ExitCode`, `Health` and so on."""
        return dict(self.engine.inspect(self.name)["State"])

    def log_lines(self) -> list[str]:
        """Return what the container wrote."""
        log = self.engine.call("logs", self.name)
        return (log.stdout + log.stderr).splitlines()

    def wait_until(self, is_reached: Callable[[], bool], *, timeout_s: float = _TIMEOUT_S) -> float:
        """Wait for a condition; return the seconds since the start of the container."""
        wait_until(is_reached, timeout_s=timeout_s, state=lambda: self.state)
        return time.monotonic() - self.started_s

    def is_healthy(self) -> bool:
        """Return whether the health check of the image passed."""
        return str(self.state["Health"]["Status"]) == "healthy"

    def is_serving(self) -> bool:
        """Return whether the server accepts calls from outside."""
        return is_serving(self.address(50051))

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all labels."""
        samples = scrape(f"http://{self.address(9464)}/metrics")
        return sum(value for series, value in samples.items() if series.partition("{")[0] == name)
