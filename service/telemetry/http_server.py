"""The HTTP port for operators: metrics, liveness and readiness."""

import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from pydantic import BaseModel, ConfigDict, Field

from service.errors import ConfigError

log = logging.getLogger(__name__)

_ALLOW = {"405 Method Not Allowed": [("Allow", "GET, HEAD")]}

_MAX_CONNECTIONS = 64
"""Each has a thread. For a further one, the oldest of the host that has most is closed: probes and scrapes need a few
for a moment, so whoever holds many for long makes room, and other hosts keep theirs."""

_MAX_CONNECTION_S = 10.0
"""From its beginning to its end, however slowly a client sends or reads."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class HttpSettings(BaseModel):
    """Where metrics and probes are served."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all IPv4 interfaces, `::` for IPv6. Open to every client that can
    connect, in plain text: it accepts no commands, and shows load and models, never texts, keys or callers."""

    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port of `/metrics`, `/healthz` and `/readyz`; 0 takes a free one."""


def make_app(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> WsgiApp:
    """Answer `/metrics`, `/healthz` (200 while the process lives), `/readyz` (503 unless ready); 404 elsewhere.

    `/metrics` has the format of the `Accept` header: Prometheus text, or OpenMetrics, which has exemplars; it is
    compressed if the caller accepts that.
    """
    metrics_app = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"], environ["REQUEST_METHOD"]:
            case "/metrics", "GET":
                try:
                    body: Iterable[bytes] = metrics_app(environ, start_response)
                except Exception:  # whichever metric fails, probes and the next scrape must be answered
                    log.exception("metrics cannot be exposed")
                    status, text = "500 Internal Server Error", "the log says why"
                else:
                    return body
            case (("/metrics" | "/healthz" | "/readyz"), method) if method not in {"GET", "HEAD"}:
                status, text = "405 Method Not Allowed", "use GET"
            case (("/metrics" | "/healthz"), _):
                status, text = "200 OK", "alive"
            case "/readyz", _:
                status, text = ("200 OK", "ready") if is_ready() else ("503 Service Unavailable", "not ready")
            case _:
                status, text = "404 Not Found", "try /metrics, /healthz or /readyz"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *_ALLOW.get(status, ())])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [f"{text}\n".encode()]

    return app


class HttpServer:
    """A small threaded server: probes are answered even while the event loop is busy."""

    def __init__(self, settings: HttpSettings, app: WsgiApp) -> None:
        """Bind the port; ConfigError if the address cannot be listened on."""
        server_class = _WsgiServerV6 if ":" in settings.host else _WsgiServer
        try:
            self._server = make_server(settings.host, settings.port, app, server_class, _QuietHandler)
        except OSError as error:
            address = f"{settings.host}:{settings.port}"
            raise ConfigError("http.port", address, f"an address that is free to listen on ({error})") from error
        self.port: int = self._server.server_port
        """The bound port."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
        )

    def start(self) -> None:
        """Start to answer, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and wait for the thread."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _WsgiServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = AF_INET
    request_queue_size = 8 * _MAX_CONNECTIONS  # a full queue would cost a probe the second until its next try

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[socket, tuple[str, float]] = {}  # in the order of their beginning; host and latest end
        self._thread_room = threading.BoundedSemaphore(2 * _MAX_CONNECTIONS)  # also those of connections just ended
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._thread_room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            if len(self._open) >= _MAX_CONNECTIONS:
                hosts = Counter(host for host, _ in self._open.values())
                greediest, _ = hosts.most_common(1)[0]
                self._end(next(one for one, (host, _) in self._open.items() if host == greediest))
            self._open[request] = client_address[0], time.monotonic() + _MAX_CONNECTION_S
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread that would release it
            self._thread_room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._thread_room.release()

    def service_actions(self) -> None:
        """End the connections whose time is up; called several times a second."""
        now_s = time.monotonic()
        with self._lock:
            for connection in [one for one, (_, end_s) in self._open.items() if end_s <= now_s]:
                self._end(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _end(self, connection: socket) -> None:
        """Wake the thread of a connection with the end of it."""
        del self._open[connection]
        with contextlib.suppress(OSError):  # it has ended by itself
            connection.shutdown(SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        if not isinstance(sys.exception(), OSError):  # the client has left, or was ended for others
            log.warning("http request failed", exc_info=True)


class _WsgiServerV6(_WsgiServer):
    address_family = AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: there are probes every few seconds."""
