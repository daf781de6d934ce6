"""Does the image do what it promises? `python -m deploy.ci.image_test`, called by `deploy/ci/image_test.sh`.

Takes the engine and the image from the environment: DOCKER_HOST, DRAGOMAN_DOCKER, DRAGOMAN_IMAGE. One line for each
check; the first that fails ends it with exit code 1, after the log of the container. What it starts it removes.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.utils import canonicalize_name
from prometheus_client.parser import text_string_to_metric_families

from deploy.ci.servers import REPOSITORY, write_secrets
from dragoman.client import TranslationClient
from dragoman.client.credentials import TlsOptions
from dragoman.client.errors import UnauthenticatedError
from dragoman.client.results import TranslationResult

_LOCK = REPOSITORY / "deploy" / "image" / "cpu.lock"
_SBOM = "/usr/share/sbom/dragoman.cdx.json"
_FIRST_LAYER = "COPY /opt/venv"
"""The instruction above the base; see the Dockerfile."""

_OPEN = ("--env", "DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED=true")
_GOOGLE = ("--env", "DRAGOMAN_GRPC__GOOGLE_TRANSLATION=true")
"""Without the library that this takes the server does not start."""

_TMPFS = ("--tmpfs", "/tmp:rw,noexec,nosuid,size=16m")  # noqa: S108 - of the container
_RESTRICTED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532:65532"),
    *("--memory", "1g", "--pids-limit", "128"),
)
"""What Kubernetes' `restricted` standard asks for, and limits."""

_OTHER_USER = ("--user", "1000650000:0")
"""As platforms choose that give each project numbers of its own."""

_SHELL_MOUNT = "type=bind,source=/dev/null,target=/usr/bin/{},readonly"
_NO_SHELL = ("--mount", _SHELL_MOUNT.format("dash"), "--mount", _SHELL_MOUNT.format("bash"))
"""Nothing can run a shell then, `/bin/sh` among them."""

_TEXT = "The weather is nice today."
_TRANSLATED_WORD = "Wetter"
_LONG_TEXTS = ["A man rides a bicycle through the old town while two dogs run behind him. " * 12] * 64
"""Keeps two cores busy for seconds."""

_GRACE_S = 40


_WAIT_S = 60.0
"""Only a failing check takes so long."""


class CheckError(Exception):
    """A promise that the image does not keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The client of a container engine, and an image there."""

    client: str
    image: str

    def call(self, *words: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the client; CheckError if it fails and `is_checked`."""
        finished = subprocess.run([self.client, *words], capture_output=True, text=True, check=False)  # noqa: S603
        if is_checked and finished.returncode != 0:
            raise CheckError(f"docker {' '.join(words)}: exit code {finished.returncode}: {finished.stderr.strip()}")
        return finished

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of an image or container."""
        return dict(json.loads(self.call("inspect", name).stdout)[0])


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

    def wait_for(self, is_reached: Callable[[], bool], what: str, *, timeout_s: float = _WAIT_S) -> float:
        """Wait; return the seconds since the container was started; CheckError if the time runs out."""
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


class ImageTest:
    """The checks, in the order in which they are run."""

    def __init__(self, engine: Engine, *, max_size_mb: float, max_start_s: float) -> None:
        """Start nothing yet.

        Args:
            engine: with the image.
            max_size_mb: beyond the base, unpacked, in 10**6 bytes.
            max_start_s: from `docker run` to healthy.
        """
        self._engine = engine
        self._max_size_mb, self._max_start_s = max_size_mb, max_start_s
        self._network = f"dragoman-test-{uuid.uuid4().hex[:8]}"

    def run(self) -> None:
        """Run all checks; CheckError at the first that fails."""
        self._check_size()
        self._check_configuration()
        self._check_bill_of_materials()
        self._check_bytecode()
        self._engine.call("network", "create", self._network)
        try:
            self._check_no_start_without_access_rule()
            with self._running(*_OPEN, *_RESTRICTED, *_TMPFS, *_NO_SHELL) as container:
                self._check_start(container)
                self._check_translation(container)
                self._check_engine(container)
                self._check_nothing_is_written(container)
                self._check_drain(container)
            with self._running(*_OPEN, *_GOOGLE, *_RESTRICTED, *_OTHER_USER, "--restart", "on-failure") as container:
                self._check_restart(container)
            with tempfile.TemporaryDirectory() as directory:
                self._check_keys_and_tls(Path(directory))
        finally:
            self._engine.call("network", "rm", self._network, is_checked=False)

    @contextlib.contextmanager
    def _running(self, *options: str) -> Iterator[Container]:
        """Run the image; remove the container at the end, after its log if a check failed."""
        name = f"{self._network}-{uuid.uuid4().hex[:4]}"
        published = ("--publish", "127.0.0.1::50051", "--publish", "127.0.0.1::9464")
        words = ("--detach", "--name", name, "--network", self._network, *published, *options)
        started_s = time.monotonic()
        try:
            self._engine.call("run", *words, self._engine.image)
            yield Container(engine=self._engine, name=name, started_s=started_s)
        except BaseException:
            log = self._engine.call("logs", "--tail", "40", name, is_checked=False)
            print(log.stdout + log.stderr, file=sys.stderr)
            raise
        finally:
            self._engine.call("rm", "--force", name, is_checked=False)

    def _check_size(self) -> None:
        form = ("--human=false", "--no-trunc", "--format", "{{.Size}} {{.CreatedBy}}")
        history = self._engine.call("history", *form, self._engine.image)
        layers = [line.partition(" ") for line in history.stdout.splitlines()]  # the last one first
        num_own = next((n for n, (*_, made_by) in enumerate(layers, 1) if made_by.startswith(_FIRST_LAYER)), 0)
        if not num_own:
            raise CheckError(f"no layer of the image begins with {_FIRST_LAYER!r}")
        size_mb = sum(int(layer_bytes) for layer_bytes, *_ in layers[:num_own]) / 1e6
        _require(size_mb <= self._max_size_mb, f"{size_mb:.0f} MB beyond the base (at most {self._max_size_mb:g})")

    def _check_configuration(self) -> None:
        config = self._engine.inspect(self._engine.image)["Config"]
        user, command, probe = config["User"], config["Entrypoint"], config["Healthcheck"]["Test"]
        _require(re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) is not None, f"runs as user {user}, a number and not root")
        _require(Path(command[0]).name == "python", f"starts {command} without a shell")
        _require(probe[0] == "CMD", f"has its health checked by {probe} without a shell")
        names = ("version", "revision", "source", "licenses")
        labels = {name: config["Labels"].get(f"org.opencontainers.image.{name}", "") for name in names}
        _require(all(labels.values()) and labels["version"] != "unknown", f"is labelled {labels}")

    def _check_bill_of_materials(self) -> None:
        name = self._engine.call("create", self._engine.image).stdout.strip()
        try:
            command = [self._engine.client, "cp", f"{name}:{_SBOM}", "-"]
            copied = subprocess.run(command, capture_output=True, check=True)  # noqa: S603
        finally:
            self._engine.call("rm", name)
        with tarfile.open(fileobj=io.BytesIO(copied.stdout)) as archive:
            document = json.load(archive.extractfile(Path(_SBOM).name) or io.BytesIO())
        found = {(canonicalize_name(part["name"]), part["version"]) for part in document["components"]}
        locked = re.findall(r"^([\w.-]+)==([\w.]+)", _LOCK.read_text(), re.MULTILINE)
        pinned = {(canonicalize_name(name), version) for name, version in locked}
        is_kept = document["bomFormat"] == "CycloneDX" and found == pinned
        _require(is_kept, f"names {len(found)} packages, exactly those of {_LOCK.name}, in {document['bomFormat']}")
        names = {name for name, _ in found}
        _require("onnxruntime" in names and "torch" not in names, "names onnxruntime and no torch")

    def _check_bytecode(self) -> None:
        python = ("--entrypoint", "/opt/venv/bin/python", self._engine.image)
        finished = self._engine.call(
            "run", "--rm", "--network", "none", *python, "-v", "-c", "import dragoman_service.app"
        )
        loaded = re.findall(r"^# code object from '", finished.stderr, re.MULTILINE)
        compiled = re.findall(r"^# code object from (/.*)$", finished.stderr, re.MULTILINE)
        promise = f"takes the bytecode of {len(loaded)} modules as it is"
        _require(bool(loaded) and not compiled, f"{promise}; compiled at the start: {', '.join(compiled) or 'none'}")

    def _check_no_start_without_access_rule(self) -> None:
        with self._running(*_RESTRICTED) as container:
            container.wait_for(lambda: container.state["Status"] == "exited", "rejecting its settings", timeout_s=20)
            exit_code, log = container.state["ExitCode"], self._engine.call("logs", container.name).stderr
        is_rejected = exit_code == 2 and "access.allow_unauthenticated" in log
        _require(is_rejected, f"does not start while no setting says who may call (exit code {exit_code})")

    def _check_start(self, container: Container) -> None:
        serving_s = container.wait_for(container.is_serving, "serving")
        healthy_s = container.wait_for(container.is_healthy, "healthy")
        times = f"serves after {serving_s:.1f} s, is healthy after {healthy_s:.1f} s (at most {self._max_start_s:g})"
        _require(healthy_s <= self._max_start_s, times)

    def _check_translation(self, container: Container) -> None:
        options = ("--target", container.address(50051), "--source-language", "auto", "--target-language", "de")
        command = [sys.executable, "-m", "dragoman_service", "translate", *options, _TEXT]
        finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)  # noqa: S603
        printed = finished.stdout.strip()
        _require(
            _TRANSLATED_WORD in printed,
            f"detects the language of {_TEXT!r} and translates: {printed or finished.stderr!r}",
        )
        requests = container.metric("dragoman_requests_total")
        _require(requests == 1, f"counts {requests:g} request in /metrics")
        form = ("--no-stream", "--format", "{{.MemUsage}}, {{.PIDs}} threads")
        print(f"      uses {self._engine.call('stats', *form, container.name).stdout.strip()}")

    def _check_engine(self, container: Container) -> None:
        log = self._engine.call("logs", container.name)
        lines = [json.loads(line) for line in (log.stdout + log.stderr).splitlines() if _is_json(line)]
        chosen = [(line["engine"], line["reason"]) for line in lines if line.get("event") == "decoder engine chosen"]
        expected = "native" if _has_instructions() else "onnxruntime"
        _require([engine for engine, _ in chosen] == [expected], f"decodes on {expected} here: {chosen}")

    def _check_nothing_is_written(self, container: Container) -> None:
        log = self._engine.call("logs", container.name)
        lines = (log.stdout + log.stderr).splitlines()
        _require(bool(lines) and all(_is_json(line) for line in lines), "logs one JSON object a line and nothing else")
        listing = "import os; print(os.listdir('/tmp'))"
        tmp = self._engine.call("exec", container.name, "/opt/venv/bin/python", "-c", listing)
        _require(tmp.stdout.strip() == "[]", "writes nothing, not even to /tmp")

    def _check_drain(self, container: Container) -> None:
        answers: list[tuple[float, TranslationResult]] = []

        def call() -> None:
            with TranslationClient(container.address(50051), timeout_s=_WAIT_S) as client:
                result = client.translate(_LONG_TEXTS, source_language="en", target_language="de")
                answers.append((time.monotonic(), result))

        caller = threading.Thread(target=call)
        caller.start()
        container.wait_for(lambda: container.metric("dragoman_batch_live_segments") > 0, "decoding")
        stopped_s = time.monotonic()
        self._engine.call("stop", "--time", str(_GRACE_S), container.name)
        caller.join(_WAIT_S)
        took_s = time.monotonic() - stopped_s
        _require(bool(answers) and answers[0][0] > stopped_s, "answers the call that was in flight when SIGTERM came")
        _require(all(part.text for part in answers[0][1]), f"answers all {len(_LONG_TEXTS)} texts of it")
        state = container.state
        _require(state["ExitCode"] == 0 and not state["OOMKilled"], f"ends {took_s:.1f} s after SIGTERM, exit code 0")

    def _check_restart(self, container: Container) -> None:
        container.wait_for(container.is_serving, "serving")
        first = container.state["Pid"]
        kill = ("--pid", "host", "--user", "0", "--network", "none", "--entrypoint", "/opt/venv/bin/python")
        self._engine.call("run", "--rm", *kill, self._engine.image, "-c", f"import os; os.kill({first}, 9)")
        killed_s = time.monotonic()
        container.wait_for(lambda: container.state["Pid"] not in {0, first}, "started again")
        container.wait_for(container.is_serving, "serving again")
        container.wait_for(container.is_healthy, "healthy again")
        restarts = self._engine.inspect(container.name)["RestartCount"]
        _require(restarts == 1, f"is started again after SIGKILL, healthy {time.monotonic() - killed_s:.1f} s later")
        _require(_TRANSLATED_WORD in _translation(container.address(50051), None, None), "translates again")

    def _check_keys_and_tls(self, directory: Path) -> None:
        certificate, key = write_secrets(directory)
        files = ("TLS__CERTIFICATE=server.crt", "TLS__PRIVATE_KEY=server.key", "ACCESS__CALLERS=callers.toml")
        given = [f"--env=DRAGOMAN_{file.replace('=', '_FILE=/run/secrets/')}" for file in files]
        mount = ("--mount", f"type=bind,source={directory},target=/run/secrets,readonly")
        with self._running(*_RESTRICTED, *mount, *given) as container:
            container.wait_for(container.is_healthy, "healthy")
            target = f"localhost:{container.address(50051).rpartition(':')[2]}"
            tls = TlsOptions(ca=certificate)
            _require(_TRANSLATED_WORD in _translation(target, tls, key), "with TLS, translates for a caller with a key")
            answer = ""
            with contextlib.suppress(UnauthenticatedError):
                answer = _translation(target, tls, None)
            _require(not answer, "with TLS, is healthy too, and rejects a caller without a key")


def main() -> int:
    """Run all checks; return 0 if the image keeps its promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-size", type=float, default=450.0, metavar="MB", help="beyond the base (%(default)g)")
    parser.add_argument("--max-start", type=float, default=5.0, metavar="S", help="until healthy (%(default)g)")
    arguments = parser.parse_args()
    engine = Engine(client=os.environ["DRAGOMAN_DOCKER"], image=os.environ["DRAGOMAN_IMAGE"])
    print(f"image {engine.image}:")
    try:
        ImageTest(engine, max_size_mb=arguments.max_size, max_start_s=arguments.max_start).run()
    except CheckError as error:
        print(f"FAIL  {error}", file=sys.stderr)
        return 1
    return 0


def _require(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise CheckError(f"this does not hold: the image {promise}")
    print(f"ok    {promise}", flush=True)


def _translation(target: str, tls: TlsOptions | None, api_key: str | None) -> str:
    with TranslationClient(target, api_key=api_key, tls=tls) as client:
        (translation,) = client.translate([_TEXT], source_language="en", target_language="de")
    return translation.text


def _has_instructions() -> bool:
    """Say whether the CPU has what the native decoder needs."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    fast = ({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}, {"avx_vnni"})
    return {"avx2", "fma"} <= flags and any(names <= flags for names in fast)


def _is_json(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return json.loads(line) is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
