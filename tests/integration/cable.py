"""A connection to a server through a socket of the test."""

import asyncio
import contextlib
from typing import Any

import grpc


class Cable:
    """A channel from a chosen source address; the test can break it without notice."""

    def __init__(self, port: int, *, from_address: str = "127.0.0.1") -> None:
        """Connect on entry.

        Args:
            port: of the server.
            from_address: one of the many addresses of this machine's loopback interface.
        """
        self._port = port
        self._from_address = from_address
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []
        self.channel: Any = None

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_retries", 0)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection and accept no new one."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._from_address, 0)
        )
        self._writers += [writer, far_writer]
        self._pumps += [
            asyncio.create_task(_pump(reader, far_writer)),
            asyncio.create_task(_pump(far_reader, writer)),
        ]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
