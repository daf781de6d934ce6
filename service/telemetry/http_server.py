"""The HTTP port for operators: metrics, liveness and readiness."""

import threading
from collections.abc import Callable, Iterable
from socket import AF_INET, AF_INET6
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from pydantic import BaseModel, ConfigDict, Field

from service.errors import ConfigError

log = structlog.get_logger(__name__)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class HttpSettings(BaseModel):
    """Where metrics and probes are served."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all IPv4 interfaces, `::` for IPv6."""

    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port of `/metrics`, `/healthz` and `/readyz`; 0 takes a free one."""


def make_app(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> WsgiApp:
    """Answer `/metrics`, `/healthz` (200 while the process lives), `/readyz` (503 unless ready); 404 elsewhere."""
    metrics_app = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                body: Iterable[bytes] = metrics_app(environ, start_response)
                return body
            case "/healthz":
                status, text = "200 OK", "alive"
            case "/readyz":
                status, text = ("200 OK", "ready") if is_ready() else ("503 Service Unavailable", "not ready")
            case _:
                status, text = "404 Not Found", "try /metrics, /healthz or /readyz"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return app


class HttpServer:
    """A small threaded server, apart from the event loop: probes are answered even while that is busy."""

    def __init__(self, settings: HttpSettings, app: WsgiApp) -> None:
        """Bind the port.

        Raises:
            ConfigError: if the address cannot be listened on.
        """
        server_class = _WsgiServerV6 if ":" in settings.host else _WsgiServer
        try:
            self._server = make_server(settings.host, settings.port, app, server_class, _QuietHandler)
        except OSError as error:
            address = f"{settings.host}:{settings.port}"
            raise ConfigError("http.port", address, f"an address that is free to listen on ({error})") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
        )

    @property
    def port(self) -> int:
        """The bound port."""
        return self._server.server_port

    def start(self) -> None:
        """Answer from now on, in a thread of its own."""
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

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        log.warning("http request failed", exc_info=True)


class _WsgiServerV6(_WsgiServer):
    address_family = AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds; a client that says nothing does not keep its thread

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: probes come every few seconds."""
