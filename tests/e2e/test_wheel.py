"""The wheels in environments without a checkout: what they install, and that the server and the exporter run."""

import json
import os
import platform
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.processes import Process
from tests.e2e.tools import CHECKOUT, get, run
from tests.integration.real_process import free_ports

pytestmark = pytest.mark.e2e

VERSION: Final = "0.2.0"
NATIVE: Final = CHECKOUT / "service" / "native"
HAS_NATIVE: Final = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
PIP: Final = ("-m", "pip", "--disable-pip-version-check")
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
START_TIMEOUT_S: Final = 60.0
CLIENT_PACKAGES: Final = {
    *("dragoman", "grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "typing-extensions"),
    *("typing_extensions", "pip", "setuptools"),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the wheels of this checkout; that of the native engine requires a C++ compiler."""
    directory = tmp_path_factory.mktemp("dist")
    build = (*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory)
    sources = (CHECKOUT, CHECKOUT / "deploy" / "models", *([NATIVE] if HAS_NATIVE else []))
    run(sys.executable, *build, *sources, directory=directory, env=ENVIRONMENT)
    return directory


def install(directory: Path, wheels: Path, requirement: str) -> Path:
    """Make an environment with a requirement; return the directory of its commands."""
    run(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    run(python, *PIP, "install", "--quiet", "--find-links", wheels, requirement, directory=directory, env=ENVIRONMENT)
    return directory / "bin"


def test_wheels_contain_no_generic_package_names(wheels: Path) -> None:
    names = {
        entry.partition("/")[0]
        for wheel in wheels.glob("*.whl")
        for entry in zipfile.ZipFile(wheel).namelist()
        if ".dist-info/" not in entry
    }

    assert names - {"dragoman_native"} == {"dragoman", "dragoman_service", "dragoman_export", "dragoman_models"}


def test_wheel_of_the_models_contains_both_directions(wheels: Path) -> None:
    (wheel,) = wheels.glob("dragoman_models-*.whl")
    packed = {entry for entry in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in entry}
    models = CHECKOUT / "deploy" / "models"

    assert {entry.split("/")[1] for entry in packed} == {"de-en", "en-de"}
    assert packed == {
        str(path.relative_to(models)) for path in (models / "dragoman_models").rglob("*") if path.is_file()
    }


def test_native_engine_is_not_built_on_unsupported_platforms(tmp_path: Path) -> None:
    target = "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=riscv64"
    build = (*PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path, NATIVE)

    finished = run(sys.executable, *build, is_checked=False, env={**ENVIRONMENT, "CMAKE_ARGS": target})

    assert finished.returncode != 0
    assert "does not support Linux on riscv64" in finished.stdout + finished.stderr


@pytest.mark.skipif(not HAS_NATIVE, reason="the native engine does not support this platform")
def test_editable_install_of_the_native_engine_loads_its_library(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, *PIP, "install", "--quiet", "--editable", NATIVE, directory=tmp_path, env=ENVIRONMENT)

    assert run(python, "-m", "dragoman_native", directory=tmp_path, env=ENVIRONMENT).stdout.split()


def test_bare_install_offers_only_the_client(wheels: Path, tmp_path: Path) -> None:
    commands = install(tmp_path / "venv", wheels, f"dragoman=={VERSION}")

    listed = run(commands / "dragoman", "--help", directory=tmp_path, env=ENVIRONMENT).stdout
    packages = run(commands / "python", *PIP, "list", "--format", "json", directory=tmp_path, env=ENVIRONMENT).stdout

    assert "  translate " in listed
    assert "  serve " not in listed
    assert "  export " not in listed
    assert {package["name"].lower() for package in json.loads(packages)} <= CLIENT_PACKAGES


def test_serving_install_translates_over_grpc_and_http(wheels: Path, tmp_path: Path) -> None:
    program = install(tmp_path / "venv", wheels, f"dragoman[serve]=={VERSION}") / "dragoman"
    engine = "native" if HAS_NATIVE else "onnxruntime"  # the server does not start without it
    grpc_port, http_port = free_ports(2)
    flags = ("--grpc-port", str(grpc_port), "--http-port", str(http_port))
    body = {"texts": ["Wo ist der Bahnhof?"], "targetLanguage": "en"}  # the language is detected
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/v1/translate",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    variables = ("--unset=PYTHONPATH", "--unset=DRAGOMAN_NATIVE_LIBRARY", f"DRAGOMAN_RUNTIME__ENGINE={engine}")
    command = ("env", f"--chdir={tmp_path}", *variables, program, "serve", *flags)

    with Process(*command, log=tmp_path / "server.log") as server:
        server.wait_until(lambda: get(f"http://127.0.0.1:{http_port}/readyz")[0] == 200, timeout_s=START_TIMEOUT_S)
        target = ("--target", f"127.0.0.1:{grpc_port}")
        by_grpc = run(program, "translate", *target, "Good morning.", directory=tmp_path, env=ENVIRONMENT).stdout
        with urllib.request.urlopen(request) as response:  # noqa: S310 - a fixed address
            by_http = json.load(response)

    assert server.stop() == 0
    assert by_grpc.strip() == "Guten Morgen."
    assert by_http["modelName"] == "de-en"
    assert "station" in by_http["translations"][0]["hypotheses"][0]["text"]


def test_exporter_of_the_wheel_offers_all_commands(wheels: Path, tmp_path: Path) -> None:
    """The dependencies are those of the test environment: PyTorch alone takes minutes to install."""
    site = tmp_path / "site"
    run(sys.executable, *PIP, "install", "--quiet", "--no-deps", "--target", site, *wheels.glob("*.whl"))
    environment = {**ENVIRONMENT, "PYTHONPATH": str(site)}

    def python(*arguments: str) -> str:
        return run(sys.executable, *arguments, directory=tmp_path, env=environment).stdout

    assert python("-c", "import dragoman_export; print(dragoman_export.__file__)").startswith(str(site))
    listed = python("-m", "dragoman_export", "--help")
    for name in (
        "train",
        "average",
        "bundle",
        "import",
        "verify",
        "evaluate",
        "convert",
        "upgrade",
        "shortlist",
        "distill",
    ):
        assert name in listed
        assert "usage:" in python("-m", "dragoman_export", name, "--help")
