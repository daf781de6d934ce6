import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry

from service.errors import ConfigError
from service.telemetry.http_server import HttpServer, HttpSettings, make_app
from service.telemetry.metrics import Metrics


@pytest.fixture
def readiness() -> dict[str, bool]:
    return {"is_ready": False}


@pytest.fixture
def server(readiness: dict[str, bool]) -> Iterator[HttpServer]:
    registry = CollectorRegistry()
    Metrics(registry)
    server = HttpServer(HttpSettings(port=0), make_app(registry, lambda: readiness["is_ready"]))
    server.start()
    yield server
    server.stop()


def get(server: HttpServer, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


def test_metrics_are_exposed_as_prometheus_text(server: HttpServer) -> None:
    status, content_type, body = get(server, "/metrics")

    assert status == 200
    assert content_type.startswith("text/plain")
    assert "# TYPE mt_queue_wait_seconds histogram" in body


def test_liveness_holds_while_readiness_does_not(server: HttpServer) -> None:
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz")[0] == 503


def test_readiness_follows_the_server(server: HttpServer, readiness: dict[str, bool]) -> None:
    readiness["is_ready"] = True

    assert get(server, "/readyz")[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico", "/readyz/x"])
def test_another_path_is_not_found(server: HttpServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_a_client_that_hangs_up_does_not_hurt_the_next(server: HttpServer) -> None:
    socket.create_connection(("127.0.0.1", server.port)).close()

    assert get(server, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"'http.port' is '127.0.0.1:{port}'"):
            HttpServer(HttpSettings(port=port), make_app(CollectorRegistry(), lambda: True))


def test_a_server_that_never_started_can_be_stopped() -> None:
    HttpServer(HttpSettings(port=0), make_app(CollectorRegistry(), lambda: True)).stop()
