"""The HTTP server: accepts connections in the event loop and limits their number.

The server class of uvicorn is not used: it accepts any number of connections and installs signal handlers.
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
from dragoman_service.http_api.connection import READ_BYTES, HttpConnection
from dragoman_service.http_api.settings import HttpSettings
from dragoman_service.security.authentication import peer_name
from dragoman_service.security.settings import address_of

log = logging.getLogger(__name__)

_BACKLOG = 512  # with a full backlog, a probe would wait a second for its retry
_BURST = 16  # connections accepted at once
_ACCEPT_RETRY_S = 0.5  # after an error of accept(), for instance without free file descriptors
_ABORT_S = 1.0  # for tasks of closed connections

TlsContext = Callable[[], ssl.SSLContext]
"""Returns the TLS context of the next connection."""


class HttpServer:
    """Listens on one port and calls an ASGI application.

    At the limit of connections, the oldest connection of the host with most connections is closed, preferably an idle
    one: probes and scrapes need few connections for a short time.
    """

    def __init__(
        self, settings: HttpSettings, app: ASGIApp, *, tls: TlsContext | None = None, setting: str = "http.port"
    ) -> None:
        """Bind the port, within a running event loop; without `tls` connections are not encrypted.

        Raises:
            ConfigError: if the address is not available; names `setting`.
        """
        self._settings = settings
        self._tls = tls
        self._config = Config(
            app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # any client can cause warnings
            access_log=False,
            proxy_headers=False,
            server_header=False,
            reset_contextvars=True,  # a request must not log the fields of the previous one
            timeout_keep_alive=round(settings.keep_alive_s) + 1,  # after the timer of HttpConnection
        )
        self._config.load()
        self._state = ServerState()
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        self._connections: dict[HttpConnection, None] = {}  # oldest first
        self._is_empty = asyncio.Event()
        self._is_draining = False
        self._retry: asyncio.TimerHandle | None = None
        self._socket = listening_socket(settings.host, settings.port, setting=setting)
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Accept connections."""
        # loop.sock_accept() raises InvalidStateError if it is cancelled when a connection arrives.
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def drain(self) -> None:
        """Close each connection after its next response, and let the API reject requests of new connections.

        Idle connections stay open, because closing them would race with the next request.
        """
        self._is_draining = True
        for connection in self._connections:
            connection.is_draining = True

    async def wait_until_answered(self) -> None:
        """Wait until every request that has arrived is answered."""
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Close the port, and the connections after a grace period for their requests."""
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
        for _ in range(_BURST):
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # closed by the client
                continue
            except OSError as error:
                log.warning("connection cannot be accepted", extra={"reason": str(error)})
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(_ACCEPT_RETRY_S, self.start)
                return
            accepted.setblocking(False)
            host, port = address[:2]
            self._open(accepted, f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}")  # as gRPC writes it

    def _open(self, accepted: socket.socket, peer: str) -> None:
        if not self._make_space(peer_name(peer)):
            accepted.close()
            return
        connection = HttpConnection(
            self._config,
            self._state,
            peer=peer,
            settings=self._settings,
            read_buffer=self._read_buffer,
            forget=self._forget,
        )
        connection.is_draining = connection.is_late = self._is_draining
        self._connections[connection] = None
        connection.opening = asyncio.create_task(self._opened(connection, accepted))

    async def _opened(self, connection: HttpConnection, accepted: socket.socket) -> None:
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
        except (OSError, asyncio.CancelledError):  # not TLS, too slow, or closed for another connection
            self._forget(connection)

    def _make_space(self, host: str) -> bool:
        """Close a connection if the limit is reached; return False if the host has most and all are active."""
        if len(self._connections) < self._settings.max_connections:
            return True
        num_connections = Counter(connection.host for connection in self._connections)
        largest, _ = num_connections.most_common(1)[0]
        candidates = [connection for connection in self._connections if connection.host == largest]
        oldest = next((connection for connection in candidates if not connection.is_answering), None)
        if oldest is None and largest == host:
            return False
        (oldest or candidates[0]).end()
        return True

    def _forget(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._is_empty.set()


def listening_socket(host: str, port: int, *, setting: str) -> socket.socket:
    """Listen on an address; ConfigError with the setting if it is not available.

    As gRPC does, `::` listens on IPv4 and IPv6, or on IPv4 if the system has no IPv6.
    """
    address = host.removeprefix("[").removesuffix("]")
    if address == "::" and not socket.has_dualstack_ipv6():
        address = "0.0.0.0"  # noqa: S104 - the settings have all interfaces
    is_dual = ":" in address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listening = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        expected = f"an available address ({error})"
        raise ConfigError(setting, address_of(host, port), expected) from error
    listening.setblocking(False)
    return listening
