"""One HTTP connection: uvicorn's httptools protocol with limits on time, size and number of requests.

The only module that uses internals of uvicorn 0.54 (`HttpToolsProtocol`, `RequestResponseCycle`, `FlowControl`): its
public settings have no limits for slow clients, large heads, chunk extensions and pipelined requests.
`tests/unit/http_api/test_connection.py` fails if these internals change.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman_service.http_api.problem_details import plain_problem
from dragoman_service.http_api.settings import HttpSettings
from dragoman_service.security.authentication import peer_name

READ_BYTES = 4 * 1024
"""Bytes that a connection reads and parses at once: at most 2 ms (1-byte chunks, 100 headers or pipelined requests,
measured 2026-11-24 on one core of a shared machine)."""

_MAX_HEAD_BYTES = 16 * 1024
_MAX_HEADERS = 100
_MAX_FRAMING_BYTES = 16 * 1024  # chunk sizes, chunk extensions and trailers, in addition to a quarter of the content
_MAX_WAITING_REQUESTS = 16  # pipelined requests at which reading pauses
_LINGER_S = 1.0
_MAX_DISCARDED_BYTES = 64 * 1024

_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


class HttpConnection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """Parses requests and runs the application for each; closes the connection if the client is too slow.

    llhttp, the parser of httptools, rejects bare LF, folded headers, repeated or invalid Content-Length, and
    Content-Length together with Transfer-Encoding. This class enforces all other rules.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        peer: str,
        settings: HttpSettings,
        read_buffer: memoryview,
        forget: Callable[["HttpConnection"], None],
    ) -> None:
        """Create the protocol of an accepted socket.

        Args:
            config: configuration of uvicorn, with the application.
            state: shared by the connections of a server.
            peer: address of the client, as gRPC writes it.
            settings: time limits.
            read_buffer: shared by the connections of an event loop; `buffer_updated` empties it.
            forget: called when the connection is closed.
        """
        super().__init__(config, state, {"peer": peer, "connection": self}, _loop=asyncio.get_running_loop())
        self.host = peer_name(peer)  # connections are limited per host
        self.opening: asyncio.Task[None] | None = None
        self.is_opening = False  # whether the event loop owns the socket
        self.is_ended = False
        self.is_draining = False  # whether the next response is the last one
        self.is_late = False  # opened after the beginning of a drain
        self.disconnected = asyncio.Event()  # set when the client of the current request has disconnected
        self.write_timeout_s = settings.request_timeout_s  # longest time in which the client does not read
        self._settings = settings
        self._read_buffer = read_buffer
        self._forget = forget
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_since_s: float | None = None
        self._running: RequestResponseCycle | None = None
        self._has_head = False  # of the request being parsed
        self._framing_bytes = 0  # of that head, or of its body
        self._is_restarting_body = False
        self._rejection: tuple[HTTPStatus, str] | None = None
        self._is_last_response = False
        self._is_lingering = False
        self._num_discarded_bytes = 0

    @property
    def is_answering(self) -> bool:
        """True while the application answers a request of this connection."""
        cycle = self._running
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def end(self) -> None:
        """Close the connection at once; the application is cancelled."""
        self.is_ended = True
        self._forget(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.is_opening and self.opening:
            self.opening.cancel()

    def end_when_answered(self) -> None:
        """Close the connection after the current response."""
        if self.transport is None:
            self.end()
        else:
            self.shutdown()

    # Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self.flow = _BoundedFlow(transport, self.pipeline)
        self._end_in(self._settings.request_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests of the connection."""
        for timer in (self._timer, self._write_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)  # ends only the newest request
        self.pipeline.clear()
        self._disconnect()
        self._unset_keepalive_if_required()
        self._forget(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that were read."""
        if self._is_lingering or self._rejection:
            self._num_discarded_bytes += nbytes
            if self._num_discarded_bytes >= _MAX_DISCARDED_BYTES:
                self.flow.pause_reading()
            return
        self.server_state.default_headers = _date_header(int(time.time()))
        self._unset_keepalive_if_required()
        if self._idle_since_s is not None:
            self._idle_since_s = None
            self._end_in(self._settings.request_timeout_s)
        self._framing_bytes += nbytes
        try:
            self._parse(self._read_buffer[:nbytes])
            self._check_framing()
        except _InvalidRequestError as error:
            self._reject(error)
        except HttpParserCallbackError as error:  # wraps exceptions of callbacks
            cause = error.__context__
            self._reject(
                cause if isinstance(cause, _InvalidRequestError) else _InvalidRequestError("malformed request target")
            )
        except HttpParserError as error:
            self._reject(_InvalidRequestError(f"malformed HTTP: {error}"))

    def pause_writing(self) -> None:
        """Start the timer for the client to read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self.end)

    def resume_writing(self) -> None:
        """Stop the timer."""
        if self._write_timer:
            self._write_timer.cancel()
        super().resume_writing()

    # Parser

    def on_message_begin(self) -> None:
        """Start a request."""
        if not self._is_restarting_body:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        if not self._is_restarting_body:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        if self._has_head:  # a trailer, which is ignored, or a header that was read before
            return
        if len(self.headers) == _MAX_HEADERS:
            raise _InvalidRequestError(
                f"more than {_MAX_HEADERS} headers; at most {_MAX_HEADERS} are allowed",
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head and run the application."""
        if self._is_restarting_body:
            return
        version, method = self.parser.get_http_version(), self.parser.get_method()
        _check_head(version, method, self.headers)
        if not self.url.startswith((b"/", b"*")) and (authority := _authority(self.url)):
            # The authority of the target replaces Host (RFC 9112, section 3.2.2).
            self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
        super().on_headers_complete()
        self._has_head = True
        self._framing_bytes = 0
        self.flow.resume_reading()  # does nothing if many requests wait

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the application."""
        self._framing_bytes -= len(body) * 5 // 4
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        if self.parser.should_upgrade():  # the body follows
            return
        self._has_head = False
        self._framing_bytes = 0
        super().on_message_complete()
        self.flow.resume_reading()  # detects a disconnect while the application works

    def _parse(self, data: memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:  # the parser stops after the head
                data = data[upgrade.args[0] :]
            else:
                return
            # RFC 9110, section 7.8, allows a server to ignore `Upgrade`: the parser restarts at the body.
            framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in _FRAMING_HEADERS)
            self._is_restarting_body = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % framing)
            self._is_restarting_body = False

    def _check_framing(self) -> None:
        if not self._has_head and self._framing_bytes > _MAX_HEAD_BYTES:
            raise _InvalidRequestError(
                f"request head larger than {_MAX_HEAD_BYTES} bytes", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            )
        if self._has_head and self._framing_bytes > _MAX_FRAMING_BYTES:
            raise _InvalidRequestError(
                "chunk sizes, chunk extensions and trailers exceed a quarter of the content by more than "
                f"{_MAX_FRAMING_BYTES} bytes; send larger chunks"
            )

    # Requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, self._closing(cycle, app))  # type: ignore[arg-type]

    def _closing(self, cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
        # Adds `Connection: close` to a response that starts before the request has ended, or while the server drains.

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_message(message: Message) -> None:
                is_last = cycle.more_body or (self.is_draining and not self.pipeline)
                if message["type"] == "http.response.start" and is_last:
                    self._is_last_response = True
                    cycle.keep_alive = False  # adds the header
                    await send(message)
                    cycle.keep_alive = True  # uvicorn would close without lingering
                else:
                    await send(message)

            await app(scope, receive, send_message)

        return run

    def on_response_complete(self) -> None:
        """Start the next request or close the connection."""
        self.write_timeout_s = self._settings.request_timeout_s
        self._idle_since_s = self.loop.time()
        self._end_in(self._settings.request_timeout_s)
        if self._is_last_response:
            self._linger()
            return
        super().on_response_complete()  # may start the next request
        if self._rejection and not self.is_answering and not self.transport.is_closing():
            self._send_rejection(*self._rejection)

    def _disconnect(self) -> None:
        self.disconnected.set()
        if self._running:
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()

    def _reject(self, error: "_InvalidRequestError") -> None:
        """Send an error after the responses to earlier requests, and close the connection."""
        self._rejection = (error.status, str(error))
        if self._has_head:  # the error is in the body of the newest request
            if self.pipeline:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self.end()
                return
            else:
                self._disconnect()
        if not self.is_answering:
            self._send_rejection(*self._rejection)

    def _send_rejection(self, status: HTTPStatus, detail: str) -> None:
        response = plain_problem(status, detail).response()
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"%s%s\r\n%s" % (STATUS_LINE[status], lines, response.body))
        self._linger()

    def _linger(self) -> None:
        """Close the connection so that a client that is still sending can read the response.

        Closing a socket with unread data resets the connection, and the client can lose the response.
        """
        self._is_lingering = True
        try:
            if self.transport.can_write_eof():  # not with TLS
                self.transport.write_eof()
        except OSError:  # reset by the client
            self.end()
        else:
            self._end_in(_LINGER_S)

    # Time limits

    def _end_in(self, time_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(time_s, self._on_time)

    def _on_time(self) -> None:
        if self.is_answering:  # the application has its own time limits; its response starts the next timer
            return
        if (
            self._idle_since_s is not None
            and not self._is_lingering
            and not self.transport.get_write_buffer_size()  # the client has read the whole response
        ):
            remaining_s = self._idle_since_s + self._settings.keep_alive_s - self.loop.time()
            if remaining_s > 0:
                self._end_in(remaining_s)
                return
        self.end()


class _BoundedFlow(FlowControl):
    """Pauses reading while many requests of the connection wait."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if len(self._waiting) < _MAX_WAITING_REQUESTS:
            super().resume_reading()


class _InvalidRequestError(Exception):
    """An invalid request; the message is sent to the client."""

    def __init__(self, detail: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(detail)
        self.status = status


def _check_head(version: str, method: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    if version not in {"1.0", "1.1"}:
        raise _InvalidRequestError(
            f"HTTP/{version} is not supported; use HTTP/1.1", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
        )
    if method == b"CONNECT":
        raise _InvalidRequestError("method CONNECT is not supported", HTTPStatus.NOT_IMPLEMENTED)
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (version == "1.1" and not num_hosts):
        raise _InvalidRequestError(f"{num_hosts} Host headers; exactly one is required")
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        raise _InvalidRequestError("unsupported Transfer-Encoding; only `chunked` in HTTP/1.1 is allowed")


def _authority(target: bytes) -> bytes:
    # Host and port of a target in absolute form.
    return target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].rpartition(b"@")[2]


@lru_cache(maxsize=2)
def _date_header(time_s: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(time_s, usegmt=True).encode())]
