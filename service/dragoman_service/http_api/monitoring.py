"""What operators ask the HTTP port for: metrics, liveness and readiness."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dragoman_service.threads import started_pool

log = logging.getLogger(__name__)


def monitoring_routes(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> list[Route]:
    """Answer `/metrics`, `/healthz` (200 while the event loop runs), `/readyz` (503 unless ready).

    `/metrics` has the format of the `Accept` header: Prometheus text, or OpenMetrics, which has exemplars; it is
    compressed if the caller accepts that.
    """
    metrics = _MetricsPage(registry)

    async def answer_liveness(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def answer_readiness(_request: Request) -> Response:
        return PlainTextResponse("ready\n") if is_ready() else PlainTextResponse("not ready\n", status_code=503)

    return [
        Route("/metrics", metrics.answer, methods=["GET"]),
        Route("/healthz", answer_liveness, methods=["GET"]),
        Route("/readyz", answer_readiness, methods=["GET"]),
    ]


class _MetricsPage:
    """Writes the page in a thread of its own: it neither stops the event loop nor waits behind other work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)
        self._thread = started_pool(1, name="metrics")

    async def answer(self, request: Request) -> Response:
        if request.method == "HEAD":
            return PlainTextResponse("alive\n")
        environ = {
            "PATH_INFO": "/metrics",
            "REQUEST_METHOD": "GET",
            "QUERY_STRING": request.url.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._written, environ)
        except Exception:  # whichever metric fails, probes and the next scrape must be answered
            log.exception("metrics cannot be exposed")
            return PlainTextResponse("the log says why\n", status_code=500)

    def _written(self, environ: dict[str, Any]) -> Response:
        started: list[Any] = []
        body = b"".join(self._app(environ, lambda status, headers: started.extend((status, headers))))
        status, headers = started
        return Response(body, status_code=int(status.partition(" ")[0]), headers=dict(headers))
