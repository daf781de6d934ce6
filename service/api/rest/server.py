"""The HTTP port: uvicorn's protocol in the server's event loop, within bounds on connections and slow clients.

uvicorn parses HTTP and calls the ASGI application. Its own server class is not used: that takes every connection there
is, waits without end for a request that comes byte by byte, and handles signals.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from itertools import count

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from service.api.callers import peer_name
from service.api.settings import HttpSettings
from service.errors import ConfigError

log = logging.getLogger(__name__)

_BACKLOG = 512  # a full one would cost a probe the second until its next try
_BURST = 16  # connections that are accepted before anything else has its turn
_ACCEPT_RETRY_S = 0.5  # after the system has refused to give a connection, as it does without free file descriptors
_MAX_HEAD_BYTES = 16 * 1024
_ABORT_S = 1.0  # for what runs on when its connection is gone

TlsContext = Callable[[], ssl.SSLContext]
"""Returns what the next connection is encrypted with."""


class HttpServer:
    """Listens on one port and calls an ASGI application.

    For a connection that is one too many, the oldest of the host that has most is closed, one without a request under
    way first: probes and scrapes need a few for a moment, so whoever holds many for long makes room, and other hosts
    keep theirs.
    """

    def __init__(
        self, settings: HttpSettings, app: ASGIApp, *, tls: TlsContext | None = None, setting: str = "http.port"
    ) -> None:
        """Bind the port, within a running event loop; without `tls` it speaks plain text.

        Raises:
            ConfigError: if the address cannot be listened on; names `setting`.
        """
        self._settings = settings
        self._tls = tls
        self._config = Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # anybody can cause its warnings
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            reset_contextvars=True,  # or a request would log what the one before it has bound
            timeout_keep_alive=round(settings.keep_alive_s) + 1,  # never before ours
        )
        self._config.load()
        self._state = ServerState()
        self._connections: dict[_Connection, None] = {}  # in the order of their beginning
        self._is_empty = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self._socket = _listening_socket(settings, setting)
        self.port: int = self._socket.getsockname()[1]
        """The bound port."""

    def start(self) -> None:
        """Begin to take connections."""
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self, grace_s: float = 0.0) -> None:
        """Close the port; requests under way have a grace to be answered."""
        if self._accepting:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._socket.close()
        for connection in list(self._connections):
            connection.end_when_answered()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._connections:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        for connection in list(self._connections):
            connection.end()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_ABORT_S)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for number in count(1):
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except ConnectionError:  # its client has gone already
                continue
            except OSError as error:
                log.warning("a connection cannot be accepted", extra={"reason": str(error)})
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._open(accepted, _peer(address))
            if number % _BURST == 0:
                await asyncio.sleep(0)

    def _open(self, accepted: socket.socket, peer: str) -> None:
        """Take a connection, or close it at once."""
        if not self._make_room(peer_name(peer)):
            accepted.close()
            return
        connection = _Connection(self._config, self._state, peer, self._settings, self._forget)
        self._connections[connection] = None
        connection.opening = asyncio.create_task(self._opened(connection, accepted))

    async def _opened(self, connection: "_Connection", accepted: socket.socket) -> None:
        """Hand a connection to the event loop, which takes a handshake of TLS."""
        if connection.is_ended:
            accepted.close()
            return
        connection.is_opening = True
        tls = self._tls() if self._tls else None
        handshake_s = self._settings.request_timeout_s if tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # no TLS, too slow, or ended for another connection
            self._forget(connection)

    def _make_room(self, host: str) -> bool:
        """End a connection if there are as many as there may be; return whether there is room for one of this host."""
        if len(self._connections) < self._settings.max_connections:
            return True
        num_of = Counter(connection.host for connection in self._connections)
        greediest, _ = num_of.most_common(1)[0]
        theirs = [connection for connection in self._connections if connection.host == greediest]
        oldest = next((connection for connection in theirs if not connection.is_answering), None)
        if oldest is None and greediest == host:
            return False
        (oldest or theirs[0]).end()
        return True

    def _forget(self, connection: "_Connection") -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._is_empty.set()


class _Connection(H11Protocol):
    """One connection; ends by itself when its client neither sends a whole request head nor reads in time."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        peer: str,
        settings: HttpSettings,
        forget: Callable[["_Connection"], None],
    ) -> None:
        super().__init__(config, state, {"peer": peer, "connection": self}, _loop=asyncio.get_running_loop())
        self.host = peer_name(peer)
        """Whose connections are counted together."""
        self.opening: asyncio.Task[None] | None = None
        self.is_opening = False
        """Whether the event loop has the socket."""
        self.is_ended = False
        self._settings = settings
        self._forget = forget
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._idle_since_s: float | None = None
        self.write_timeout_s = settings.request_timeout_s
        """How long the client may read nothing of the answer under way."""

    @property
    def is_answering(self) -> bool:
        """Whether the application has a request of it."""
        return self.cycle is not None and not self.cycle.response_complete

    def end(self) -> None:
        """Drop the connection; an application that answers it sees that its client has gone."""
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_in(self._settings.request_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._unread):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._forget(self)

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = _date_header(int(time.time()))
        if self._idle_since_s is not None:
            self._idle_since_s = None
            self._end_in(self._settings.request_timeout_s)
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.write_timeout_s, self.end)

    def resume_writing(self) -> None:
        if self._unread:
            self._unread.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self.write_timeout_s = self._settings.request_timeout_s
        self._idle_since_s = self.loop.time()
        self._end_in(self._settings.request_timeout_s)
        super().on_response_complete()  # which may begin the next request

    def _end_in(self, time_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(time_s, self._on_time)

    def _on_time(self) -> None:
        if self.is_answering:  # the application has times of its own; whatever it answers starts the next time
            return
        if self._idle_since_s is not None and not self.transport.get_write_buffer_size():  # the client has read it all
            remaining_s = self._idle_since_s + self._settings.keep_alive_s - self.loop.time()
            if remaining_s > 0:
                self._end_in(remaining_s)
                return
        self.end()


@lru_cache(maxsize=2)
def _date_header(time_s: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(time_s, usegmt=True).encode())]


def _listening_socket(settings: HttpSettings, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    address = (settings.host, settings.port)
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        expected = f"an address that is free to listen on ({error})"
        raise ConfigError(setting, f"{settings.host}:{settings.port}", expected) from error
    listening.setblocking(False)
    return listening


def _peer(address: tuple[str, int]) -> str:
    """Return an address as gRPC names it."""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
