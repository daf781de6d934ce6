"""One HTTP connection: uvicorn's protocol on the parser httptools, within bounds that neither of them has."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
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
from dragoman_service.security.api_keys import peer_name
from dragoman_service.security.settings import HttpSettings

READ_BYTES = 4 * 1024
"""Bytes that one connection reads and parses before other connections have their turn: at most 2 ms (1-byte chunks,
100 headers or pipelined requests, measured 2026-11-24 on one core of a shared machine)."""

_MAX_HEAD_BYTES = 16 * 1024
_MAX_HEADERS = 100
_MAX_FRAMING_BYTES = 16 * 1024  # chunk sizes, chunk extensions and trailers, beyond a quarter of the content
_MAX_WAITING_REQUESTS = 16  # pipelined requests that wait while the connection still reads
_LINGER_S = 1.0
_MAX_DISCARDED_BYTES = 64 * 1024

_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """Parses requests and runs the application for each; closes itself if the client is too slow.

    llhttp, the parser inside httptools, refuses bare LF, folded headers, repeated or invalid Content-Length, and
    Content-Length together with Transfer-Encoding. This class refuses the rest.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        peer: str,
        settings: HttpSettings,
        read_buffer: memoryview,
        forget: Callable[["Connection"], None],
    ) -> None:
        """Create the protocol of an accepted socket.

        Args:
            config: has the application.
            state: shared by the connections of a server.
            peer: address of the client, as gRPC names it.
            settings: time limits.
            read_buffer: shared by the connections of an event loop; `buffer_updated` empties it.
            forget: called once the connection is closed.
        """
        super().__init__(config, state, {"peer": peer, "connection": self}, _loop=asyncio.get_running_loop())
        self.host = peer_name(peer)
        """Host whose connections are counted together."""
        self.opening: asyncio.Task[None] | None = None
        self.is_opening = False
        """Whether the event loop has the socket."""
        self.is_ended = False
        self.client_left = asyncio.Event()
        """Set once nobody reads the answer under way."""
        self.write_timeout_s = settings.request_timeout_s
        """Longest time in which the client reads nothing of the answer under way."""
        self._settings = settings
        self._read_buffer = read_buffer
        self._forget = forget
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._idle_since_s: float | None = None
        self._running: RequestResponseCycle | None = None
        self._has_head = False  # of the request that is being parsed
        self._framing_bytes = 0  # of that head, or of its body
        self._is_restarting_body = False
        self._refusal: tuple[HTTPStatus, str] | None = None
        self._is_last_answer = False
        self._is_lingering = False
        self._num_discarded_bytes = 0

    @property
    def is_answering(self) -> bool:
        """Whether the application is answering a request of this connection."""
        cycle = self._running
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def end(self) -> None:
        """Close the connection at once; its application is told that the client has gone."""
        self.is_ended = True
        self._forget(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.is_opening and self.opening:
            self.opening.cancel()

    def end_when_answered(self) -> None:
        """Close the connection after the response under way, or now if there is none."""
        if self.transport is None:
            self.end()
        else:
            self.shutdown()

    # Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection, whose first head must come in time."""
        super().connection_made(transport)
        self.flow = _BoundedFlow(transport, self.pipeline)
        self._end_in(self._settings.request_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests of a connection that is closed."""
        for timer in (self._timer, self._unread):
            if timer:
                timer.cancel()
        super().connection_lost(exc)  # which ends the newest request only
        self.pipeline.clear()
        self._disconnect()
        self._unset_keepalive_if_required()
        self._forget(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read."""
        if self._is_lingering or self._refusal:
            self._discard(nbytes)
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
        except _RefusedError as error:
            self._refuse(error)
        except HttpParserCallbackError as error:  # httptools does not let other exceptions through
            cause = error.__context__
            self._refuse(cause if isinstance(cause, _RefusedError) else _RefusedError("malformed request target"))
        except HttpParserError as error:
            self._refuse(_RefusedError(f"malformed HTTP: {error}"))

    def pause_writing(self) -> None:
        """Give the client a limited time to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.write_timeout_s, self.end)

    def resume_writing(self) -> None:
        """Write on, as the client has read."""
        if self._unread:
            self._unread.cancel()
        super().resume_writing()

    # Parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._is_restarting_body:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        if not self._is_restarting_body:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        if self._has_head:  # a trailer, which nothing reads, or a header that was read before
            return
        if len(self.headers) == _MAX_HEADERS:
            raise _RefusedError(
                f"more than {_MAX_HEADERS} headers; at most {_MAX_HEADERS} are allowed",
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head and run the application."""
        if self._is_restarting_body:
            return
        self._check_head()
        super().on_headers_complete()
        self._has_head = True
        self._framing_bytes = 0
        self.flow.resume_reading()  # unless many requests wait

    def on_body(self, body: bytes) -> None:
        """Give the application a part of the body."""
        self._framing_bytes -= len(body) * 5 // 4
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        if self.parser.should_upgrade():  # the body follows
            return
        self._has_head = False
        self._framing_bytes = 0
        super().on_message_complete()
        self.flow.resume_reading()  # or the end of the connection would not be seen while the application works

    def _parse(self, data: memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:  # the parser stops after the head
                data = data[upgrade.args[0] :]
                self._restart_body()
            else:
                return

    def _restart_body(self) -> None:
        """Let the parser expect the body of a request whose `Upgrade` is ignored, as RFC 9110, section 7.8 allows."""
        framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in _FRAMING_HEADERS)
        self._is_restarting_body = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % framing)
        self._is_restarting_body = False

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        names = [name for name, _ in self.headers]
        if version not in {"1.0", "1.1"}:
            raise _RefusedError(f"HTTP/{version} is not supported; use HTTP/1.1", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if self.parser.get_method() == b"CONNECT":
            raise _RefusedError("method CONNECT is not supported", HTTPStatus.NOT_IMPLEMENTED)
        num_hosts = names.count(b"host")
        if num_hosts > 1 or (version == "1.1" and not num_hosts):
            raise _RefusedError(f"{num_hosts} Host headers; exactly one is required")
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise _RefusedError("unsupported Transfer-Encoding; only `chunked` in HTTP/1.1 is allowed")

    def _check_framing(self) -> None:
        if not self._has_head and self._framing_bytes > _MAX_HEAD_BYTES:
            raise _RefusedError(
                f"request head larger than {_MAX_HEAD_BYTES} bytes", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            )
        if self._has_head and self._framing_bytes > _MAX_FRAMING_BYTES:
            raise _RefusedError(
                "chunk sizes, chunk extensions and trailers exceed a quarter of the content by more than "
                f"{_MAX_FRAMING_BYTES} bytes; send larger chunks"
            )

    # Requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, self._closing_after_early_answer(cycle, app))  # type: ignore[arg-type]

    def _closing_after_early_answer(self, cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
        """Return the application with `Connection: close` in an answer that begins before the request has ended."""

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_message(message: Message) -> None:
                if message["type"] == "http.response.start" and cycle.more_body:
                    self._is_last_answer = True
                    cycle.keep_alive = False  # adds the header
                    await send(message)
                    cycle.keep_alive = True  # or uvicorn would close without lingering
                else:
                    await send(message)

            await app(scope, receive, send_message)

        return run

    def on_response_complete(self) -> None:
        """Begin the next request, or close the connection."""
        self.write_timeout_s = self._settings.request_timeout_s
        self._idle_since_s = self.loop.time()
        self._end_in(self._settings.request_timeout_s)
        if self._is_last_answer:
            self._linger()
            return
        super().on_response_complete()  # which may begin the next request
        if self._refusal and not self.is_answering and not self.transport.is_closing():
            self._send_refusal(*self._refusal)

    def _disconnect(self) -> None:
        """Let the application see that the client of the request under way has gone."""
        self.client_left.set()
        if self._running:
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()

    def _refuse(self, error: "_RefusedError") -> None:
        """Answer with an error and close, after the answers to earlier requests."""
        self._refusal = (error.status, str(error))
        if self._has_head:  # the body of the newest request is malformed
            if self.pipeline:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self.end()
                return
            else:
                self._disconnect()
        if not self.is_answering:
            self._send_refusal(*self._refusal)

    def _send_refusal(self, status: HTTPStatus, detail: str) -> None:
        response = plain_problem(status, detail).response()
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"%s%s\r\n%s" % (STATUS_LINE[status], lines, response.body))
        self._linger()

    def _linger(self) -> None:
        """Close the connection so that a client that is still sending can read the answer first.

        A socket that is closed with unread data resets the connection, and the client may lose the answer.
        """
        self._is_lingering = True
        try:
            if self.transport.can_write_eof():  # not with TLS
                self.transport.write_eof()
        except OSError:  # the client has reset the connection, and the event loop has not read that yet
            self.end()
        else:
            self._end_in(_LINGER_S)

    def _discard(self, num_bytes: int) -> None:
        self._num_discarded_bytes += num_bytes
        if self._num_discarded_bytes >= _MAX_DISCARDED_BYTES:
            self.flow.pause_reading()

    # Time limits

    def _end_in(self, time_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(time_s, self._on_time)

    def _on_time(self) -> None:
        if self.is_answering:  # the application has its own time limits; its answer starts the next timer
            return
        if (
            self._idle_since_s is not None
            and not self._is_lingering
            and not self.transport.get_write_buffer_size()  # the client has read the whole answer
        ):
            remaining_s = self._idle_since_s + self._settings.keep_alive_s - self.loop.time()
            if remaining_s > 0:
                self._end_in(remaining_s)
                return
        self.end()


class _BoundedFlow(FlowControl):
    """Reads no further requests while many of the same connection wait."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if len(self._waiting) < _MAX_WAITING_REQUESTS:
            super().resume_reading()


class _RefusedError(Exception):
    """A request that cannot be parsed; the message is sent to the client."""

    def __init__(self, detail: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(detail)
        self.status = status


@lru_cache(maxsize=2)
def _date_header(time_s: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(time_s, usegmt=True).encode())]
