"""The Deployment of overlays/cpu and of the chart under `podman kube play`, confined, with a new API key.

Needs root, and Debian's podman, runc and catatonit, which are installed if they are missing. Images, networks and state
of podman are below a temporary directory. Podman 4.3 ignores preStop, terminationGracePeriodSeconds, fsGroup, modes of
files in volumes, and limits of emptyDir. It supports no Services and mounts Secrets undecoded, so ConfigMaps replace
Secrets.
"""

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from packaging.version import Version

from dragoman.client import DragomanError, TlsOptions, UnauthenticatedError
from loadtests.generator.metrics import scrape
from tests.e2e.containers import TRANSLATED_WORD, Engine, long_call, post_text, translate
from tests.e2e.replicas import write_secrets
from tests.e2e.tools import DEPLOY, get, helm, kustomize, run
from tests.integration.real_process import free_ports
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PLAYED_KINDS: Final = ("ConfigMap", "PersistentVolumeClaim", "Deployment")  # in the order that podman needs
FIRST_WITH_DECODED_SECRETS: Final = Version("4.4")
READY_TIMEOUT_S: Final = 60.0
GRACE_S: Final = 60
CONFIGURATION: Final = f"""\
[containers]
default_ulimits = ["nofile=8192:8192", "nproc=8192:8192"]
[engine]
stop_timeout = {GRACE_S}
"""


class Podman:
    """Podman with its images, networks and state in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.version = Version(re.sub(r"^\D*", "", run("podman", "--version").stdout.strip()))
        (directory / "containers.conf").write_text(CONFIGURATION, encoding="utf-8")
        self._environment = {**os.environ, "CONTAINERS_CONF": str(directory / "containers.conf")}

    def call(self, *words: str | Path, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        places = ("root", "runroot", "tmpdir", "network-config-dir")
        flags = [word for name in places for word in (f"--{name}", self.directory / name)]
        flags += [
            "--runtime",
            shutil.which("runc") or "runc",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "file",
        ]
        return run("podman", *flags, *words, is_checked=is_checked, env=self._environment)

    def inspect(self, container: str, template: str) -> str:
        return self.call("inspect", "--format", template, container).stdout.strip()


Render = Callable[[Podman, str], str]
"""Returns the objects with an image of podman."""


def overlay(*components: str) -> Render:
    def render(podman: Podman, image: str) -> str:
        name, _, tag = image.rpartition(":")
        images = [{"name": "registry.example.com/dragoman", "newName": name, "newTag": tag}]
        return kustomize(podman.directory / "overlay", "overlays/cpu", components, images=images)

    return render


def chart(**values: Any) -> Render:
    def render(podman: Podman, image: str) -> str:
        name, _, tag = image.rpartition(":")
        fixed = {"image": {"repository": name, "tag": tag}, "replicas": 1}  # podman gives all replicas the same ports
        return helm(podman.directory / "chart", "dragoman", {**fixed, **values})

    return render


class Play:
    """Rendered objects as podman plays them."""

    def __init__(self, podman: Podman, image: str, secrets: Path, render: Render) -> None:
        self._podman, self._file = podman, podman.directory / "play.yaml"
        self.grpc_port, self.http_port, self.metrics_port = numbers = free_ports(3)
        objects = list(filter(None, yaml.safe_load_all(render(podman, image))))
        (deployment,) = [item for item in objects if item["kind"] == "Deployment"]
        self.pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
        for port, number in zip(self.pod["containers"][0]["ports"], numbers, strict=True):
            port |= {"hostPort": number, "hostIP": "127.0.0.1"}
        files = {
            "dragoman-callers": {"callers.toml": secrets / "callers.toml"},
            "dragoman-tls": {"tls.crt": secrets / "server.crt", "tls.key": secrets / "server.key"},
        }
        played = [*self._secrets(files), *(item for kind in PLAYED_KINDS for item in objects if item["kind"] == kind)]
        self._file.write_text(yaml.safe_dump_all(played), encoding="utf-8")

    def _secrets(self, files: Mapping[str, Mapping[str, Path]]) -> Iterator[dict[str, Any]]:
        """Yield the Secrets that an operator makes, or ConfigMaps and change the pod to mount them."""
        kind = "Secret" if self._podman.version >= FIRST_WITH_DECODED_SECRETS else "ConfigMap"
        for name, paths in files.items():
            contents = {key: path.read_bytes() for key, path in paths.items()}
            if kind == "Secret":
                contents = {key: base64.b64encode(content) for key, content in contents.items()}
            data = {key: content.decode() for key, content in contents.items()}
            yield {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data}
        for volume in self.pod["volumes"]:
            if "secret" in volume and kind == "ConfigMap":
                volume["configMap"] = {"name": volume.pop("secret")["secretName"]}

    def __enter__(self) -> "Play":
        try:
            self._podman.call("kube", "play", self._file)
            self.container = self._podman.call("ps", "--quiet", "--filter", "name=server").stdout.strip()
            wait_until(lambda: self.status("/readyz") == HTTPStatus.OK, timeout_s=READY_TIMEOUT_S, state=self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._podman.call("kube", "down", self._file)
        assert self._podman.call("ps", "--all", "--quiet").stdout == ""

    def status(self, path: str) -> int:
        """Return the status of a path on the port of metrics and probes."""
        return get(f"http://127.0.0.1:{self.metrics_port}{path}")[0]

    def log(self) -> str:
        return self._podman.call("logs", self.container).stderr


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if os.getuid() != 0:
        pytest.skip("podman needs root here")
    programs = ("podman", "runc", "catatonit")
    if not all(map(shutil.which, programs)):
        installed = run(DEPLOY / "ci" / "install.sh", *programs, is_checked=False)
        if installed.returncode != 0:
            pytest.skip(f"podman cannot be installed: {installed.stderr}")
    bridges = network_bridges()
    with tempfile.TemporaryDirectory(prefix="kube-play.") as directory:  # short, as it holds sockets
        podman = Podman(Path(directory))
        try:
            yield podman
        finally:
            podman.call("network", "rm", "--force", "podman-default-kube-network", is_checked=False)
            podman.call("system", "reset", "--force", is_checked=False)
            for bridge in network_bridges() - bridges:  # CNI does not remove them
                run("ip", "link", "delete", bridge, is_checked=False)


@pytest.fixture(scope="module")
def image(podman: Podman, engine: Engine) -> str:
    """The image of the engine in podman's storage; skip the tests if podman cannot run it."""
    archive = podman.directory / "image.tar"
    engine.call("save", "--output", archive, engine.image)
    loaded = podman.call("load", "--quiet", "--input", archive, is_checked=False)
    archive.unlink()
    if loaded.returncode != 0:
        pytest.skip(f"podman cannot store images here: {loaded.stderr}")
    image = loaded.stdout.partition(": ")[2].strip()
    started = podman.call("run", "--rm", "--publish", "127.0.0.1::50051", image, "--help", is_checked=False)
    if started.returncode != 0:
        pytest.skip(f"podman cannot run containers with a network here: {started.stderr}")
    return image


def network_bridges() -> set[str]:
    return {path.name for path in Path("/sys/class/net").glob("cni-podman*")}


@pytest.mark.parametrize("render", [overlay(), chart()], ids=["overlay", "chart"])
def test_pod_is_ready_confined_and_drains(podman: Podman, image: str, tmp_path: Path, render: Render) -> None:
    _, key = write_secrets(tmp_path)
    with Play(podman, image, tmp_path, render) as play:
        target, url = f"127.0.0.1:{play.grpc_port}", f"http://127.0.0.1:{play.http_port}"
        server = play.pod["containers"][0]
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):  # as the kubelet does
            assert play.status(server[name]["httpGet"]["path"]) == HTTPStatus.OK, name
        assert_confined(podman, play.container)

        assert TRANSLATED_WORD in translate(target, api_key=key)
        assert TRANSLATED_WORD in post_text(url, api_key=key).text
        with pytest.raises(UnauthenticatedError):
            translate(target)
        assert post_text(url).status_code == HTTPStatus.UNAUTHORIZED

        metrics, in_flight = (
            f"http://127.0.0.1:{play.metrics_port}/metrics",
            'dragoman_requests_in_flight{method="Translate"}',
        )
        with long_call(target, lambda: scrape(metrics).get(in_flight) == 1, api_key=key):  # stopped as by the kubelet
            podman.call("stop", play.container)
        assert podman.inspect(play.container, "{{.State.ExitCode}}") == "0"
        assert '"event": "draining"' in play.log()


def test_pod_with_tls_rejects_plain_text(podman: Podman, image: str, tmp_path: Path) -> None:
    authority, key = write_secrets(tmp_path)
    with Play(podman, image, tmp_path, chart(tls={"existingSecret": "dragoman-tls"})) as play:
        assert TRANSLATED_WORD in translate(f"localhost:{play.grpc_port}", api_key=key, tls=TlsOptions(ca=authority))
        with pytest.raises(DragomanError):
            translate(f"127.0.0.1:{play.grpc_port}", api_key=key, timeout_s=5)
        url = f"https://localhost:{play.http_port}"
        assert TRANSLATED_WORD in post_text(url, api_key=key, authority=authority).text


def assert_confined(podman: Podman, container: str) -> None:
    """Compare the state of the process in the kernel with the manifest."""
    process = Path("/proc") / podman.inspect(container, "{{.State.Pid}}")
    lines = (process / "status").read_text(encoding="utf-8").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    mounts = [line.split() for line in (process / "mountinfo").read_text(encoding="utf-8").splitlines()]
    (root_options,) = [mount[5].split(",") for mount in mounts if mount[4] == "/"]
    environment = (process / "environ").read_text(encoding="utf-8").split("\0")

    assert status["Uid"] == status["Gid"] == ["65532"] * 4
    assert int(status["CapBnd"][0], 16) == 0
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2"]  # filter
    assert root_options[0] == "ro"
    assert podman.inspect(container, "{{.HostConfig.Memory}}") == str(1024**3)
    assert not any(variable.startswith("DRAGOMAN_SERVICE") for variable in environment)  # Services
