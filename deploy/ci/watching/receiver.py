"""The webhook at the end of the chain: keeps what Alertmanager sends."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Receiver:
    """Listens on a free port of loopback from within `with`."""

    def __init__(self) -> None:
        self._alerts: list[dict[str, Any]] = []
        self._came = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """Where to send alerts."""
        return f"http://127.0.0.1:{self._server.server_port}/alerts"

    def wait_for(self, name: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Return a firing alert of this name as soon as it has come; None if it does not come in time."""
        until_s = time.monotonic() + timeout_s
        with self._came:
            while True:
                for alert in self._alerts:
                    if alert["labels"]["alertname"] == name and alert["status"] == "firing":
                        return alert
                if not self._came.wait(until_s - time.monotonic()) and time.monotonic() >= until_s:
                    return None

    def names(self) -> set[str]:
        """Return the names of all alerts that have come."""
        with self._came:
            return {alert["labels"]["alertname"] for alert in self._alerts}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, alerts: list[dict[str, Any]]) -> None:
        with self._came:
            self._alerts.extend(alerts)
            self._came.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                take(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        return Handler
