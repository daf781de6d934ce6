import asyncio
import errno
import gzip
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from dragoman_service.errors import ConfigError
from dragoman_service.http_api.application import make_app
from dragoman_service.http_api.server import HttpServer, listening_socket
from dragoman_service.http_api.settings import HttpSettings
from dragoman_service.observability.metrics import Metrics
from tests.captured_logs import capture_logs
from tests.http_in_thread import monitoring_server

PATIENCE_MS = 30_000  # only reached by a test that would otherwise hang
ACCEPT_OF_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.fixture
def readiness() -> dict[str, bool]:
    return {"is_ready": False}


@pytest.fixture
def server(readiness: dict[str, bool]) -> Iterator[HttpServer]:
    registry = CollectorRegistry()
    Metrics(registry)
    with monitoring_server(registry, lambda: readiness["is_ready"], max_connections=64) as server:
        yield server


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Message
    body: bytes


def ask(server: HttpServer, method: str, path: str, **headers: str) -> Answer:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(status=response.status, headers=response.headers, body=response.read())


def test_probes_report_liveness_and_readiness(server: HttpServer, readiness: dict[str, bool]) -> None:
    paths = ("/metrics", "/healthz", "/readyz")

    assert [ask(server, "GET", path).status for path in paths] == [200, 200, 503]
    assert [ask(server, "HEAD", path).status for path in paths] == [200, 200, 503]
    assert ask(server, "HEAD", "/healthz").body == b""
    readiness["is_ready"] = True
    assert ask(server, "GET", "/readyz").status == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        *(("GET", path, (404, None)) for path in ("/", "/metrics/", "/favicon.ico", "/readyz/x")),
        ("POST", "/metrics", (405, "GET, HEAD")),
        ("DELETE", "/healthz", (405, "GET, HEAD")),
        ("OPTIONS", "/readyz", (405, "GET, HEAD")),
    ],
)
def test_other_paths_and_methods_are_rejected(
    server: HttpServer, method: str, path: str, expected: tuple[int, str | None]
) -> None:
    answer = ask(server, method, path)

    assert (answer.status, answer.headers["Allow"]) == expected


async def test_unavailable_port_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"'http.port' is '127.0.0.1:{port}'"):
            HttpServer(HttpSettings(port=port), make_app([]))
        with pytest.raises(ConfigError, match=rf"'http.port' is '\[::ffff:127.0.0.1\]:{port}'"):
            HttpServer(HttpSettings(host="::ffff:127.0.0.1", port=port), make_app([]))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("host", ["::", "[::]"])
def test_all_interfaces_are_ipv4_and_ipv6(host: str) -> None:
    with listening_socket(host, 0, setting="http.port") as listening:
        port = listening.getsockname()[1]

        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


def test_all_interfaces_are_ipv4_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with listening_socket("::", 0, setting="http.port") as listening:
        assert listening.family == socket.AF_INET


@pytest.mark.parametrize("is_started", [False, True])
async def test_stop_is_idempotent(is_started: bool) -> None:
    server = HttpServer(HttpSettings(port=0), make_app([]))
    if is_started:
        server.start()

    await server.stop()
    await server.stop()


async def test_connection_during_stop_is_closed_and_not_logged() -> None:
    server = HttpServer(HttpSettings(port=0), make_app([]))
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    server.start()
    await asyncio.sleep(0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        await asyncio.sleep(0)  # stop() runs in the step of the event loop that sees the connection
        await server.stop()
        await asyncio.sleep(0)

        assert not faults
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def test_accepting_continues_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    errors = iter([OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()])

    def fail_twice(listening: socket.socket) -> tuple[socket.socket, Any]:
        if error := next(errors, None):
            raise error
        return accept(listening)

    monkeypatch.setattr("dragoman_service.http_api.server._ACCEPT_RETRY_S", 0.0)
    monkeypatch.setattr(socket.socket, "accept", fail_twice)
    server = HttpServer(HttpSettings(port=0), make_app([]))
    server.start()
    with capture_logs() as records:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /absent HTTP/1.0\r\n\r\n")

        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        await server.stop()
    assert [record["event"] for record in records] == ["connection cannot be accepted"]


class BrokenCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        raise RuntimeError("no figures")


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        ("application/openmetrics-text", "application/openmetrics-text; version="),
        (ACCEPT_OF_PROMETHEUS, "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_metrics_have_the_requested_format(server: HttpServer, accept: str, content_type: str) -> None:
    answer = ask(server, "GET", "/metrics", Accept=accept)

    assert b"# TYPE dragoman_queue_wait_seconds histogram" in answer.body
    assert answer.headers["Content-Type"].startswith(content_type)
    assert answer.body.endswith(b"# EOF\n") is content_type.startswith("application")


def test_metrics_are_compressed_on_request(server: HttpServer) -> None:
    answer = ask(server, "GET", "/metrics", Accept_Encoding="gzip")

    assert answer.headers["Content-Encoding"] == "gzip"
    assert b"# TYPE dragoman_ready gauge" in gzip.decompress(answer.body)


def test_failing_metric_is_logged_and_does_not_affect_probes() -> None:
    registry = CollectorRegistry()
    broken = BrokenCollector()
    registry.register(broken)

    with monitoring_server(registry) as server:
        with capture_logs() as records:
            failed = ask(server, "GET", "/metrics")
        healthy = ask(server, "GET", "/healthz")
        registry.unregister(broken)
        repaired = ask(server, "GET", "/metrics")

    assert [failed.status, healthy.status, repaired.status] == [500, 200, 200]
    assert [record["event"] for record in records] == ["metrics cannot be written"]


def connected(stack: ExitStack, server: HttpServer, *, host: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(host, 0))
    return stack.enter_context(connection)


def test_silent_connections_do_not_block_others(server: HttpServer) -> None:
    num_threads = threading.active_count()
    with ExitStack() as stack:
        idle = [connected(stack, server) for _ in range(80)]

        assert idle[0].recv(1) == b""  # the oldest makes room for the newest
        idle[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.1 200"
        assert threading.active_count() - num_threads < 8


def test_host_with_most_connections_loses_one_for_another_host(server: HttpServer) -> None:
    with ExitStack() as stack:
        patient = connected(stack, server, host="127.0.0.2")
        for connection in [connected(stack, server) for _ in range(200)]:
            with suppress(OSError):  # ended for a newer one
                connection.sendall(b"GET /healthz HTTP/1.0\r\nX: ")

        assert ask(server, "GET", "/healthz").status == ask(server, "GET", "/metrics").status == 200
        patient.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert patient.recv(12) == b"HTTP/1.1 503"


def answer_to_slow_bytes(connection: socket.socket) -> bytes:
    """Send a byte at a time without ending a line; return the answer, or nothing once the server has closed."""
    interval_s = 0.02
    connection.settimeout(interval_s)
    for _ in range(round(PATIENCE_MS / 1000 / interval_s)):
        try:
            connection.sendall(b"X")
            return connection.recv(1)
        except TimeoutError:
            continue
        except ConnectionError:  # a server that closes before it has read every byte resets the connection
            return b""
    pytest.fail(f"the server has not closed the connection within {PATIENCE_MS} ms")


@pytest.mark.parametrize("first_request", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_slow_head_closes_the_connection(first_request: bytes) -> None:
    with monitoring_server(CollectorRegistry(), request_timeout_s=1.0) as server, ExitStack() as stack:
        connection = connected(stack, server)
        if first_request:
            connection.sendall(first_request)
            with connection.makefile("rb", buffering=0) as answer:
                assert b"alive\n" in iter(answer.readline, b"")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert answer_to_slow_bytes(connection) == b""


def test_connection_without_request_is_closed() -> None:
    with (
        monitoring_server(CollectorRegistry(), request_timeout_s=0.5, keep_alive_s=0.7) as server,
        ExitStack() as stack,
    ):
        connection = connected(stack, server)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")

        with connection.makefile("rb") as answer:
            assert answer.read().endswith(b"alive\n")


def test_client_that_does_not_read_is_closed() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with monitoring_server(registry, request_timeout_s=0.3) as server, ExitStack() as stack:
        connection = connected(stack, server)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        with suppress(OSError):  # the connection was closed
            while True:
                connection.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
        ended = select.poll()
        ended.register(connection, select.POLLRDHUP)  # and errors, which need not be asked for

        assert ended.poll(PATIENCE_MS)
