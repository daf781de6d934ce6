import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from dragoman_service.__main__ import main
from dragoman_service.cli.probe import OwnServer, own_server
from tests.certificates import NAME, Authority, chain_pem, key_pem
from tests.http_in_thread import monitoring_server

_REPOSITORY = Path(__file__).parents[3]
_HEAVY_MODULES = {
    "numpy",
    "onnxruntime",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "sentencepiece",
    "structlog",
}
_STATUS = health_pb2.HealthCheckResponse


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(name)


@contextmanager
def _running(status: int, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """Serve health on a free port of this machine; yield the port."""
    servicer = health.HealthServicer()
    servicer.set("", status)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield int(port)
    finally:
        server.stop(grace=None).wait()


@pytest.mark.parametrize(
    ("status", "flags", "expected"),
    [
        (_STATUS.SERVING, (), (0, "")),
        (_STATUS.NOT_SERVING, (), (1, "is NOT_SERVING")),
        (_STATUS.SERVING, ("--service", "unknown.v1.Service"), (1, "NOT_FOUND")),
    ],
)
def test_exit_code_is_0_only_if_the_service_is_serving(
    status: int, flags: tuple[str, ...], expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with _running(status) as port:
        exit_code = main(["probe", "--target", f"127.0.0.1:{port}", *flags])

    printed = capsys.readouterr()
    assert (exit_code, printed.out, bool(printed.err)) == (expected[0], "", bool(expected[1]))
    assert expected[1] in printed.err


def test_unreachable_or_unresponsive_server_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["probe", "--target", target, "--timeout", "0.2"]) == 1
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().err
    assert main(["probe", "--target", target]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def ca_file(authority: Authority, tmp_path: Path) -> str:
    return str(authority.write(tmp_path / "ca.crt"))


@pytest.mark.parametrize(
    ("name", "required", "hint"),
    [(NAME, ("--ca-file",), "TLS"), ("dragoman.example", ("--ca-file", "--server-name"), "")],
)
def test_certificate_is_verified(
    name: str,
    required: tuple[str, ...],
    hint: str,
    authority: Authority,
    ca_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {"--ca-file": ca_file, "--server-name": name}
    flags = [part for flag in required for part in (flag, values[flag])]
    with _running(_STATUS.SERVING, _credentials(authority, name)) as port:
        assert main(["probe", "--target", f"{NAME}:{port}", *flags]) == 0
        assert main(["probe", "--target", f"{NAME}:{port}", *flags[:-2]]) == 1

    assert hint in capsys.readouterr().err


def test_client_certificate_is_sent(authority: Authority, ca_file: str, tmp_path: Path) -> None:
    client = authority.sign("probe.example")
    (tmp_path / "client.crt").write_bytes(chain_pem(client))
    (tmp_path / "client.key").write_bytes(key_pem(client))
    shown = ["--certificate-file", str(tmp_path / "client.crt"), "--private-key-file", str(tmp_path / "client.key")]
    with _running(_STATUS.SERVING, _credentials(authority, NAME, asks_client=True)) as port:
        flags = ["probe", "--target", f"{NAME}:{port}", "--ca-file", ca_file]
        assert main([*flags, *shown]) == 0
        assert main(flags) == 1


@pytest.mark.parametrize(
    ("flags", "config", "fault"),
    [(["--certificate-file", "client.crt"], None, "private_key"), ([], "missing.toml", "missing.toml")],
)
def test_invalid_files_are_named(
    flags: list[str],
    config: str | None,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if config:
        monkeypatch.setenv("DRAGOMAN_CONFIG", config)

    assert main(["probe", *flags]) == 1
    assert fault in capsys.readouterr().err


def test_default_target_is_the_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with _running(_STATUS.SERVING) as port:
        monkeypatch.setenv("DRAGOMAN_GRPC__PORT", str(port))
        assert main(["probe"]) == 0

    assert main(["probe"]) == 1


def test_addresses_of_the_local_server_are_read_from_its_settings(tmp_path: Path) -> None:
    settings = tmp_path / "service.toml"
    settings.write_text('grpc = {host = "0.0.0.0", port = 7000}\ntls = {certificate_file = "server.crt"}\n')

    assert own_server({}) == OwnServer(grpc_address="127.0.0.1:50051", http_address="127.0.0.1:9464", has_tls=False)
    assert own_server(
        {"DRAGOMAN_CONFIG": str(settings), "DRAGOMAN_GRPC__PORT": "6000", "DRAGOMAN_HTTP__HOST": "::"}
    ) == OwnServer(grpc_address="127.0.0.1:6000", http_address="[::1]:9464", has_tls=True)
    assert own_server({"DRAGOMAN_HTTP__HOST": "::", "DRAGOMAN_HTTP__METRICS_PORT": "9465"}).http_address == "[::1]:9465"


def test_local_server_with_tls_is_probed_on_its_http_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_ready = True
    monkeypatch.setenv("DRAGOMAN_TLS__CERTIFICATE_FILE", "server.crt")
    with monitoring_server(CollectorRegistry(), lambda: is_ready) as http_server:
        monkeypatch.setenv("DRAGOMAN_HTTP__PORT", str(http_server.port))

        assert main(["probe"]) == 0
        is_ready = False
        assert main(["probe"]) == 1
    assert main(["probe"]) == 1
    assert "503 Service Unavailable" in capsys.readouterr().err


def test_probe_imports_no_heavy_modules() -> None:
    program = (
        "import sys; from dragoman_service.__main__ import main;"
        "main(['probe', '--target', '127.0.0.1:1']); print(*sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=_REPOSITORY, capture_output=True, text=True, check=True
    )

    loaded = set(finished.stdout.split())
    assert "dragoman_service.cli.probe" in loaded
    assert loaded.isdisjoint(_HEAVY_MODULES)


def _credentials(authority: Authority, name: str, *, asks_client: bool = False) -> grpc.ServerCredentials:
    certificate = authority.sign(name)
    pair = (key_pem(certificate), chain_pem(certificate))
    return grpc.ssl_server_credentials([pair], authority.certificate if asks_client else None, asks_client)
