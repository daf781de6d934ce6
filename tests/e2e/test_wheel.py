"""The wheels in environments without a checkout: what they install, and that the server and the exporter run."""

import json
import os
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

CHECKOUT = Path(__file__).resolve().parents[2]
VERSION = "0.2.0"
START_S = 60.0


def run(*command: str | Path, directory: Path, **environment: str) -> str:
    """Run a command outside the checkout, without the environment of the tests; return what it prints."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the wheels of this checkout."""
    directory = tmp_path_factory.mktemp("dist")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps")
    run(*pip, "--wheel-dir", directory, CHECKOUT, CHECKOUT / "deploy" / "models", directory=directory)
    return directory


def install(directory: Path, wheels: Path, requirement: str) -> Path:
    """Make an environment with a requirement; return the directory of its commands."""
    run(sys.executable, "-m", "venv", directory, directory=directory.parent)
    pip = (directory / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--find-links", wheels, requirement, directory=directory.parent)
    return directory / "bin"


@contextmanager
def serving(commands: Path, directory: Path) -> Iterator[dict[str, int]]:
    """Run `dragoman serve` on free ports; yield its ports."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    log_path = directory / "server.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [commands / "dragoman", "serve", "--grpc-port", "0", "--http-port", "0"],
            cwd=directory,
            env=environment,
            stderr=log,
        )
        try:
            yield ready_ports(process, log_path)
        finally:
            process.terminate()
            assert process.wait(START_S) == 0


def ready_ports(process: "subprocess.Popen[bytes]", log_path: Path) -> dict[str, int]:
    """Wait until the server is ready; return its ports."""
    until_s = time.monotonic() + START_S
    while True:
        log = log_path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in log.splitlines(keepends=True) if line.endswith("\n")]
        events = {line["event"]: line for line in lines}
        if "ready" in events:
            return {name: events["listening"][name] for name in ("grpc_port", "http_port")}
        assert process.poll() is None, log
        assert time.monotonic() < until_s, log


def test_wheels_contain_no_generic_package_names(wheels: Path) -> None:
    names = {
        entry.partition("/")[0]
        for wheel in wheels.glob("*.whl")
        for entry in zipfile.ZipFile(wheel).namelist()
        if ".dist-info/" not in entry
    }

    assert names == {"dragoman", "dragoman_service", "dragoman_export", "dragoman_models"}


def test_bare_install_offers_only_the_client(wheels: Path, tmp_path: Path) -> None:
    commands = install(tmp_path / "venv", wheels, f"dragoman=={VERSION}")

    listed = run(commands / "dragoman", "--help", directory=tmp_path)
    packages = json.loads(run(commands / "python", "-m", "pip", "list", "--format", "json", directory=tmp_path))

    assert "  translate " in listed
    assert "  serve " not in listed
    assert "  export " not in listed
    assert {package["name"].lower() for package in packages} == {
        *("dragoman", "grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "typing-extensions"),
        *("typing_extensions", "pip", "setuptools"),
    } & {package["name"].lower() for package in packages}


def test_serving_install_translates_over_grpc_and_http(wheels: Path, tmp_path: Path) -> None:
    commands = install(tmp_path / "venv", wheels, f"dragoman[serve]=={VERSION}")

    with serving(commands, tmp_path) as ports:
        target = f"127.0.0.1:{ports['grpc_port']}"
        by_grpc = run(commands / "dragoman", "translate", "--target", target, "Good morning.", directory=tmp_path)
        request = urllib.request.Request(
            f"http://127.0.0.1:{ports['http_port']}/v1/translate",
            data=json.dumps({"texts": ["Good morning."], "sourceLanguage": "en", "targetLanguage": "de"}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310 - a fixed address
            by_http = json.load(response)

    assert by_grpc.strip() == "Guten Morgen!"
    assert by_http["translations"][0]["hypotheses"][0]["text"] == "Guten Morgen!"


def test_exporter_of_the_wheel_offers_all_commands(wheels: Path, tmp_path: Path) -> None:
    """The dependencies are those of the test environment: PyTorch alone takes minutes to install."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
    run(*pip, "--target", tmp_path / "site", *wheels.glob("*.whl"), directory=tmp_path)
    command = (sys.executable, "-m", "dragoman_export")
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    program = "import dragoman_export; print(dragoman_export.__file__)"

    used = run(sys.executable, "-c", program, directory=tmp_path, **environment)
    listed = run(*command, "--help", directory=tmp_path, **environment)

    assert used.startswith(str(tmp_path / "site"))
    for name in ("train", "average", "bundle", "import", "verify", "evaluate", "upgrade", "shortlist", "distill"):
        assert name in listed
        assert "usage:" in run(*command, name, "--help", directory=tmp_path, **environment)
