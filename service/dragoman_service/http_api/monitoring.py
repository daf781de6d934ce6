"""Routes for operators: metrics, liveness and readiness."""

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
    """Return the routes `/metrics`, `/healthz` (200 while the event loop runs) and `/readyz` (503 unless ready).

    `/metrics` has the format of the header `Accept`: Prometheus text, or OpenMetrics with exemplars. It is compressed
    if the client accepts that.
    """
    write_metrics = make_wsgi_app(registry)
    # In a thread of its own, the page neither blocks the event loop nor waits for other work.
    thread = started_pool(1, name="metrics")

    def metrics_page(environ: dict[str, Any]) -> Response:
        started: list[Any] = []
        body = b"".join(write_metrics(environ, lambda status, headers: started.extend((status, headers))))
        status, headers = started
        return Response(body, status_code=int(status.partition(" ")[0]), headers=dict(headers))

    async def answer_metrics(request: Request) -> Response:
        if request.method == "HEAD":  # the body is not sent, so the metrics are not written
            return PlainTextResponse("alive\n")
        environ = {
            "PATH_INFO": "/metrics",
            "REQUEST_METHOD": "GET",
            "QUERY_STRING": request.url.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, metrics_page, environ)
        except Exception:  # a failing metric must not affect probes
            log.exception("metrics cannot be written")
            return PlainTextResponse("internal error; see the log of the server\n", status_code=500)

    async def answer_liveness(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def answer_readiness(_request: Request) -> Response:
        return PlainTextResponse("ready\n") if is_ready() else PlainTextResponse("not ready\n", status_code=503)

    return [
        Route("/metrics", answer_metrics, methods=["GET"]),
        Route("/healthz", answer_liveness, methods=["GET"]),
        Route("/readyz", answer_readiness, methods=["GET"]),
    ]
