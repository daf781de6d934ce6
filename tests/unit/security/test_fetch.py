import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman_service.security import fetch
from dragoman_service.security.fetch import fetched
from tests.certificates import NAME, Authority, ServerFiles

TEST_TIMEOUT_S = 30.0  # only reached by a test that fails
PACE_S = 0.01
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class DrippingServer:
    """Sends a beginning, then one byte after the other until the client closes the connection."""

    def __init__(self, beginning: bytes, context: ssl.SSLContext | None = None, *, byte: bytes = b"a") -> None:
        self.left = threading.Event()
        """Set once the client has closed the connection."""
        self._beginning, self._context, self._byte = beginning, context, byte
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        scheme = "https" if self._context else "http"
        return f"{scheme}://{NAME}:{self._listener.getsockname()[1]}/jwks"

    def close(self) -> None:
        self._listener.close()
        self._thread.join(TEST_TIMEOUT_S)

    def _serve(self) -> None:
        accepted, _ = self._listener.accept()
        connection = self._context.wrap_socket(accepted, server_side=True) if self._context else accepted
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(self._beginning)
            while not select.select([connection], [], [], PACE_S)[0]:
                connection.sendall(self._byte)
        self.left.set()


@pytest.fixture
def server_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    authority = Authority()
    files = ServerFiles(tmp_path, authority.sign(NAME))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write(tmp_path / "ca.crt")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


@contextlib.contextmanager
def dripping(beginning: bytes, context: ssl.SSLContext | None = None) -> Iterator[DrippingServer]:
    server = DrippingServer(beginning, context)
    yield server
    server.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "beginning",
    [b"", HEAD, HEAD + b"\r\n", HEAD + b"Content-Length: 100000\r\n\r\n"],
    ids=["status line", "headers", "body without length", "body"],
)
def test_slow_server_exceeds_the_time_limit(
    beginning: bytes, scheme: str, server_context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_TIME_S", 20 * PACE_S)
    with dripping(beginning, server_context if scheme == "https" else None) as server:
        with pytest.raises(OSError, match="timed out"):
            fetched(server.url)

        assert server.left.wait(TEST_TIMEOUT_S)


def test_large_response_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_BYTES", 1000)
    with dripping(HEAD + b"\r\n" + bytes(1001)) as server, pytest.raises(ValueError, match="1000 bytes"):
        fetched(server.url)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_whole_response_is_returned(scheme: str, server_context: ssl.SSLContext) -> None:
    content = b"x" * 100_000
    answer = HEAD + b"Content-Length: 100000\r\n\r\n" + content
    with dripping(answer, server_context if scheme == "https" else None) as server:
        assert fetched(server.url) == content
