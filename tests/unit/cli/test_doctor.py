"""`dragoman doctor` with valid and broken installations."""

import datetime as dt
import json
import os
import resource
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.__main__ import main
from dragoman_service.cli import doctor
from dragoman_service.cli.keys import caller_entry
from dragoman_service.config import Settings, load_settings
from dragoman_service.errors import EngineError
from dragoman_service.fake_model import write_fake_bundle
from dragoman_service.runtimes.native.library import BackendUnsupportedError
from dragoman_service.security.api_keys import new_key
from tests.certificates import NAME, Authority, chain_pem, key_pem
from tests.http_in_thread import monitoring_server

MIB = 1 << 20
FREE_PORTS: dict[str, object] = {"grpc.port": 0, "http.port": 0}

Doctor = Callable[..., tuple[int, dict[str, list[str]]]]


@pytest.fixture(autouse=True)
def installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without settings, and a native engine, whatever is installed here."""
    for name in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(doctor, "load_library", lambda: SimpleNamespace(instruction_sets=("avx512", "avx2")))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model directory with the bundle `fake/1`."""
    directory = tmp_path / "models"
    write_fake_bundle(directory / "fake" / "1")
    return directory


@pytest.fixture
def examine(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run the command with settings; return the exit code and the statuses by check."""

    def run(**settings: object) -> tuple[int, dict[str, list[str]]]:
        values = {**FREE_PORTS, "models.directory": str(models)}
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        file = tmp_path / "service.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        exit_code = main(["doctor", "--config", str(file), "--json"])
        printed = json.loads(capsys.readouterr().out)
        assert printed["ok"] == (exit_code == 0)
        statuses: dict[str, list[str]] = {}
        for check in printed["checks"]:
            assert bool(check["fix"]) == (check["status"] != "OK")
            statuses.setdefault(check["name"], []).append(check["status"])
        return exit_code, statuses

    return run


def write_identity(directory: Path, *, days: float = 365.0) -> dict[str, Any]:
    """Write a certificate and its key; return their settings."""
    expiry = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    certificate = Authority().sign(NAME, not_after=expiry)
    (directory / "tls.crt").write_bytes(chain_pem(certificate))
    (directory / "tls.key").write_bytes(key_pem(certificate))
    (directory / "tls.key").chmod(0o600)
    return {
        "tls__certificate_file": str(directory / "tls.crt"),
        "tls__private_key_file": str(directory / "tls.key"),
        "http__metrics_port": 0,
    }


def write_callers(directory: Path) -> Path:
    file = directory / "callers.toml"
    file.write_text(caller_entry("shop", "translate", key=new_key()))
    return file


def settings_of(**flags: object) -> Settings:
    return load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})


def status_of(check: Any) -> list[str]:
    return [finding.status for finding in check]


def test_valid_installation_has_a_line_for_each_check(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    callers = write_callers(tmp_path)
    callers.chmod(0o640)
    settings = {"grpc__port": 0, "http__port": 0, "access__callers_file": callers, **write_identity(tmp_path)}
    for name, value in settings.items():
        monkeypatch.setenv(f"DRAGOMAN_{name.upper()}", str(value))

    assert main(["doctor", "--models", str(models)]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {name for _, name, *_ in lines} == {"packages", "settings", *(check.__name__ for check in doctor.CHECKS)}
    assert {status for status, name, *_ in lines if name not in ("packages", "bundles", "connections")} == {"OK"}


@pytest.mark.parametrize("settings", [{"grpc__prot": 1}, {"grpc__port": 70000}, {"grpc__host": "::"}])
def test_invalid_setting_fails_and_ends_the_checks(settings: dict[str, object], examine: Doctor) -> None:
    exit_code, statuses = examine(**settings)

    assert (exit_code, list(statuses), statuses["settings"]) == (1, ["packages", "settings"], ["FAIL"])


def test_damaged_and_missing_bundles_and_precisions_fail(examine: Doctor, models: Path, tmp_path: Path) -> None:
    write_fake_bundle(models / "fake" / "2")
    (models / "fake" / "1" / "fake.onnx").write_bytes(b"x")
    exit_code, statuses = examine()
    assert (exit_code, sorted(statuses["bundles"])) == (1, ["FAIL", "OK", "OK"])

    exit_code, statuses = examine(models__directory=str(tmp_path / "missing"))
    assert (exit_code, statuses["bundles"]) == (1, ["FAIL"])

    exit_code, statuses = examine(runtime__precision="fp8")
    assert (exit_code, statuses["bundles"][0]) == (1, "FAIL")


@pytest.mark.parametrize("setting", ["grpc.port", "http.port"])
def test_port_in_use_fails(setting: str, examine: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0)
        exit_code, statuses = examine(**{setting: taken.getsockname()[1]})

    assert (exit_code, sorted(statuses["ports"])) == (1, ["FAIL", "OK"])


def test_port_of_a_running_server_is_ok(examine: Doctor) -> None:
    with monitoring_server(CollectorRegistry()) as server:
        exit_code, statuses = examine(http__port=server.port)

    assert (exit_code, statuses["ports"]) == (0, ["OK", "OK"])


def test_unreadable_or_invalid_keys_file_fails(examine: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "callers.toml"
    for content in (None, "[[caller]]\n"):
        if content is not None:
            file.write_text(content)
        exit_code, statuses = examine(access__callers_file=str(file))
        assert (exit_code, statuses["callers"]) == (1, ["FAIL"])


def test_files_that_others_can_read_are_a_warning(examine: Doctor, tmp_path: Path) -> None:
    callers, identity = write_callers(tmp_path), write_identity(tmp_path)
    for path in (callers, tmp_path / "tls.key"):
        path.chmod(0o644)

    exit_code, statuses = examine(access__callers_file=str(callers), **identity)

    assert (exit_code, statuses["permissions"]) == (0, ["WARN", "WARN"])


def test_server_that_accepts_every_client_is_a_warning(examine: Doctor) -> None:
    exit_code, statuses = examine(grpc__host="::", access__allow_unauthenticated=True)

    assert (exit_code, statuses["callers"]) == (0, ["WARN"])


@pytest.mark.parametrize(("days", "expected"), [(-1, (1, "FAIL")), (13.5, (0, "WARN")), (14.5, (0, "OK"))])
def test_certificate_that_expires_soon_is_a_warning(
    days: float, expected: tuple[int, str], examine: Doctor, tmp_path: Path
) -> None:
    exit_code, statuses = examine(**write_identity(tmp_path, days=days))

    assert (exit_code, *statuses["tls"]) == expected


def test_key_of_another_certificate_fails(examine: Doctor, tmp_path: Path) -> None:
    identity = write_identity(tmp_path)
    (tmp_path / "tls.key").write_bytes(key_pem(Authority().sign(NAME)))

    exit_code, statuses = examine(**identity)

    assert (exit_code, statuses["tls"]) == (1, ["FAIL"])


def test_native_engine_that_is_missing_fails_only_if_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "load_library", Mock(side_effect=BackendUnsupportedError("not installed")))

    assert status_of(doctor.engine(settings_of())) == ["WARN"]
    assert status_of(doctor.engine(settings_of(runtime__engine="native"))) == ["FAIL"]
    assert status_of(doctor.engine(settings_of(runtime__instruction_set="avx2"))) == ["FAIL"]
    assert status_of(doctor.engine(settings_of(runtime__engine="onnxruntime"))) == ["OK"]

    monkeypatch.setattr(doctor, "load_library", Mock(side_effect=EngineError("self-test failed")))
    assert status_of(doctor.engine(settings_of())) == ["FAIL"]


def test_instruction_set_of_another_cpu_fails() -> None:
    assert status_of(doctor.engine(settings_of(runtime__instruction_set="avx2"))) == ["OK"]
    assert status_of(doctor.engine(settings_of(runtime__instruction_set="neon"))) == ["FAIL"]


def test_each_configured_gpu_is_tried() -> None:
    settings = settings_of(runtime__device="cuda:1", runtime__num_replicas=2)

    findings = list(doctor.gpu(settings, lambda index: "no such GPU" if index == 2 else None))

    assert status_of(findings) == ["OK", "FAIL"]
    assert status_of(doctor.gpu(settings_of(), lambda _: "no driver")) == ["OK"]


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({"dragoman": "1.2.0", "dragoman-native": "1.2.0", "dragoman-models": "1.2.7"}, "OK"),
        ({"dragoman": "1.2.0"}, "OK"),
        ({"dragoman": "1.2.0", "dragoman-native": "1.2.1"}, "FAIL"),
        ({"dragoman": "1.2.0", "dragoman-models": "1.3.0"}, "FAIL"),
        ({"dragoman": "1.2.0", "onnxruntime": "1", "onnxruntime-gpu": "1"}, "FAIL"),
        ({}, "WARN"),
    ],
)
def test_versions_of_the_distributions_must_fit(versions: dict[str, str], status: str) -> None:
    def version_of(name: str) -> str:
        try:
            return versions[name]
        except KeyError:
            raise PackageNotFoundError(name) from None

    assert doctor.packages(version_of).status == status


@pytest.mark.parametrize(("available", "status"), [(200, "OK"), (199, "WARN"), (100, "WARN"), (99, "FAIL")])
def test_memory_must_hold_the_weights_and_should_hold_them_twice(available: int, status: str) -> None:
    assert doctor.memory(100 * MIB, available * MIB).status == status


def test_available_memory_is_at_most_the_limit_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(doctor, "_MEMORY_FILES", (str(limit), str(tmp_path / "missing")))
    limit.write_text("max\n")
    assert doctor.available_memory() > 5 * MIB

    limit.write_text(f"{5 * MIB}\n")
    assert doctor.available_memory() == 5 * MIB


def test_limit_of_open_files_below_the_connections_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(grpc__max_connections=700, http__max_connections=300)
    needed = settings.max_open_files
    assert needed > 1000
    for limit, status in ((needed - 1, "WARN"), (needed, "OK"), (resource.RLIM_INFINITY, "OK")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (256, limit))  # the soft limit is raised
        assert status_of(doctor.connections(settings)) == [status]
