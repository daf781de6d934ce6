"""The HTTP port: accepts connections in the server's event loop and bounds their number.

uvicorn's server class is not used: it accepts any number of connections and handles signals.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from dragoman_service.errors import ConfigError
from dragoman_service.http_api.connection import READ_BYTES, Connection
from dragoman_service.security.api_keys import peer_name
from dragoman_service.security.settings import HttpSettings

log = logging.getLogger(__name__)

_BACKLOG = 512  # a full one would cost a probe the second until its next try
_BURST = 16  # connections that are accepted before anything else has its turn
_ACCEPT_RETRY_S = 0.5  # after the system has refused to give a connection, as it does without free file descriptors
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
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # any client can cause warnings
            access_log=False,
            proxy_headers=False,
            server_header=False,
            reset_contextvars=True,  # or a request would log the fields of the previous one
            timeout_keep_alive=round(settings.keep_alive_s) + 1,  # never before the timer of Connection
        )
        self._config.load()
        self._state = ServerState()
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        self._connections: dict[Connection, None] = {}  # in the order of their beginning
        self._is_empty = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None
        self._socket = _listening_socket(settings, setting)
        self.port: int = self._socket.getsockname()[1]
        """The bound port."""

    def start(self) -> None:
        """Begin to take connections."""
        # loop.sock_accept() raises InvalidStateError if it is cancelled in the step that sees a connection.
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Close the port; requests under way have a grace to be answered."""
        if self._retry:
            self._retry.cancel()
        if self._socket.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._socket)
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

    def _accept(self) -> None:
        """Accept the connections that wait, a bounded number at a time."""
        for _ in range(_BURST):
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # its client has gone already
                continue
            except OSError as error:
                log.warning("a connection cannot be accepted", extra={"reason": str(error)})
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(_ACCEPT_RETRY_S, self.start)
                return
            accepted.setblocking(False)
            self._open(accepted, _peer(address))

    def _open(self, accepted: socket.socket, peer: str) -> None:
        """Take a connection, or close it at once."""
        if not self._make_room(peer_name(peer)):
            accepted.close()
            return
        connection = Connection(
            self._config,
            self._state,
            peer=peer,
            settings=self._settings,
            read_buffer=self._read_buffer,
            forget=self._forget,
        )
        self._connections[connection] = None
        connection.opening = asyncio.create_task(self._opened(connection, accepted))

    async def _opened(self, connection: Connection, accepted: socket.socket) -> None:
        """Hand a connection to the event loop, which takes a handshake of TLS."""
        if connection.is_ended:
            accepted.close()
            return
        connection.is_opening = True
        tls = self._tls() if self._tls else None
        handshake_s = self._settings.request_timeout_s if tls else None
        try:
            # asyncio sets this only on sockets whose protocol number is IPPROTO_TCP; that of accepted sockets is 0.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._is_empty.set()


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
