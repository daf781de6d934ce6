"""An HTTP server in a thread with its own event loop, for tests with blocking sockets."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from dragoman_service.http_api.application import make_app
from dragoman_service.http_api.monitoring import monitoring_routes
from dragoman_service.http_api.server import HttpServer, TlsContext
from dragoman_service.http_api.settings import HttpSettings


@contextlib.contextmanager
def http_server(app: ASGIApp, *, tls: TlsContext | None = None, **settings: Any) -> Iterator[HttpServer]:
    """Run a server of an application on a free port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def started() -> HttpServer:
        server = HttpServer(HttpSettings.model_validate({"port": 0, **settings}), app, tls=tls)
        server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(started(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def monitoring_server(
    registry: CollectorRegistry, is_ready: Callable[[], bool] = lambda: True, **settings: Any
) -> Iterator[HttpServer]:
    """Run a server of metrics and probes on a free port."""
    with http_server(make_app(monitoring_routes(registry, is_ready)), **settings) as server:
        yield server
