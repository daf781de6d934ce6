"""A connection of the HTTP server without a socket."""

import asyncio
import re
from collections import deque
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from dragoman_service.http_api.connection import READ_BYTES, HttpConnection
from dragoman_service.http_api.settings import HttpSettings

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Recorder:
    """An application that answers each request with its body, and records what it received."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.num_disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body = b""
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.num_disconnects += 1
                return
            body += event["body"]
            if not event["more_body"]:
                break
        self.bodies.append(body)
        await respond(send, 200, body)


async def respond(send: Send, status: int, body: bytes) -> None:
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_paused = False
        self.is_half_closed = False
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_half_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Wire:
    """Feeds a connection slice by slice like an event loop, and stops while reading is paused."""

    def __init__(self, app: ASGIApp) -> None:
        config = Config(app, http=HttpConnection, ws="none", lifespan="off", log_config=None, interface="asgi3")
        config.load()
        self.transport = FakeTransport()
        self.unread: deque[bytes] = deque()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.connection = HttpConnection(
            config,
            ServerState(),
            peer="ipv4:127.0.0.1:1",
            settings=HttpSettings(),
            read_buffer=self._buffer,
            forget=lambda _connection: None,
        )
        self.connection.connection_made(self.transport)

    async def send(self, *parts: bytes) -> bytes:
        """Send each part in separate reads; return the output of the server once it is idle."""
        for part in parts:
            self.unread.extend(part[start : start + READ_BYTES] for start in range(0, len(part), READ_BYTES))
            await self.settle()
        return self.transport.sent

    async def settle(self) -> None:
        """Run until the connection is idle."""
        num_idle = 0
        while num_idle < 10:
            before = len(self.transport.sent), len(self.unread)
            while self.unread and not self.transport.is_paused and not self.transport.is_closed:
                data = self.unread.popleft()
                self._buffer[: len(data)] = data
                self.connection.buffer_updated(len(data))
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            num_idle = num_idle + 1 if before == (len(self.transport.sent), len(self.unread)) else 0


def statuses(sent: bytes) -> list[int]:
    """Return the status codes of all responses."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", sent)]
