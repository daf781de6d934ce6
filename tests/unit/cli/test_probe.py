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


def test_a_server_that_serves_is_exit_code_0_and_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    with _running(_STATUS.SERVING) as port:
        assert main(["probe", "--target", f"127.0.0.1:{port}"]) == 0

    assert capsys.readouterr() == ("", "")


def test_a_server_that_warms_up_or_drains_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with _running(_STATUS.NOT_SERVING) as port:
        assert main(["probe", "--target", f"127.0.0.1:{port}"]) == 1

    assert "is NOT_SERVING" in capsys.readouterr().err


def test_a_service_that_the_server_does_not_know_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with _running(_STATUS.SERVING) as port:
        assert main(["probe", "--target", f"127.0.0.1:{port}", "--service", "nobody.v1.Knows"]) == 1

    assert "NOT_FOUND" in capsys.readouterr().err


def test_nobody_listening_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with _running(_STATUS.SERVING) as port:
        pass

    assert main(["probe", "--target", f"127.0.0.1:{port}"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert main(["probe", "--target", f"127.0.0.1:{port}", "--timeout", "0.2"]) == 1

    assert "DEADLINE_EXCEEDED" in capsys.readouterr().err


def test_a_server_with_tls_is_asked_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority()
    ca_file = str(authority.write(tmp_path / "ca.crt"))
    with _running(_STATUS.SERVING, _credentials(authority, NAME)) as port:
        assert main(["probe", "--target", f"{NAME}:{port}", "--ca-file", ca_file]) == 0
        assert main(["probe", "--target", f"{NAME}:{port}"]) == 1

    assert "TLS" in capsys.readouterr().err


def test_the_certificate_may_hold_another_name_than_the_target(tmp_path: Path) -> None:
    authority = Authority()
    ca_file = str(authority.write(tmp_path / "ca.crt"))
    with _running(_STATUS.SERVING, _credentials(authority, "dragoman.example")) as port:
        flags = ["probe", "--target", f"{NAME}:{port}", "--ca-file", ca_file]
        assert main(flags) == 1
        assert main([*flags, "--server-name", "dragoman.example"]) == 0


def test_who_asks_for_a_certificate_gets_one(tmp_path: Path) -> None:
    authority = Authority()
    ca_file = str(authority.write(tmp_path / "ca.crt"))
    client = authority.sign("probe.example")
    (tmp_path / "client.crt").write_bytes(chain_pem(client))
    (tmp_path / "client.key").write_bytes(key_pem(client))
    shown = ["--certificate-file", str(tmp_path / "client.crt"), "--private-key-file", str(tmp_path / "client.key")]
    with _running(_STATUS.SERVING, _credentials(authority, NAME, asks_client=True)) as port:
        flags = ["probe", "--target", f"{NAME}:{port}", "--ca-file", ca_file]
        assert main([*flags, *shown]) == 0
        assert main(flags) == 1


def test_files_that_do_not_go_together_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--certificate-file", str(tmp_path / "client.crt")]) == 1
    assert "private_key" in capsys.readouterr().err


def test_without_a_target_it_asks_this_machines_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with _running(_STATUS.SERVING) as port:
        monkeypatch.setenv("DRAGOMAN_GRPC__PORT", str(port))
        assert main(["probe"]) == 0

    assert main(["probe"]) == 1


def test_this_machines_server_is_found_by_its_settings(tmp_path: Path) -> None:
    settings = tmp_path / "service.toml"
    settings.write_text('grpc = {host = "0.0.0.0", port = 7000}\ntls = {certificate_file = "server.crt"}\n')

    assert own_server({}) == OwnServer(grpc_address="127.0.0.1:50051", http_address="127.0.0.1:9464", has_tls=False)
    assert own_server(
        {"DRAGOMAN_CONFIG": str(settings), "DRAGOMAN_GRPC__PORT": "6000", "DRAGOMAN_HTTP__HOST": "::"}
    ) == OwnServer(grpc_address="127.0.0.1:6000", http_address="[::1]:9464", has_tls=True)
    assert own_server({"DRAGOMAN_HTTP__HOST": "::", "DRAGOMAN_HTTP__METRICS_PORT": "9465"}).http_address == "[::1]:9465"


def test_this_machines_server_with_tls_is_asked_by_its_http_port(
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


def test_settings_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAGOMAN_CONFIG", "missing.toml")

    assert main(["probe"]) == 1
    assert "missing.toml" in capsys.readouterr().err


def test_it_loads_nothing_of_the_server() -> None:
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
