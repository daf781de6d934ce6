"""A TCP proxy to a server, whose connections the test can break."""

import asyncio
import contextlib
from typing import Any

import grpc


class Proxy:
    """Forwards connections to a port and has a gRPC channel through itself.

    Args:
        port: of the server.
        from_address: one of the addresses of this machine's loopback interface, as seen by the server.
    """

    def __init__(self, port: int, *, from_address: str = "127.0.0.1") -> None:
        self._port = port
        self._from_address = from_address
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._forwards = asyncio.Event()
        self._forwards.set()
        self.channel: Any = None

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=[("grpc.enable_retries", 0)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        self._forwards.set()
        self.reset()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def reset(self) -> None:
        """Reset every connection and accept no new one."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def vanish(self) -> None:
        """Forward nothing more, without closing the connections."""
        self._forwards.clear()

    @property
    def port(self) -> int:
        """Port of the proxy."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def forward_to(self, port: int) -> None:
        """Forward new connections to another server, as a load balancer of connections does in a rollout."""
        self._port = port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._from_address, 0)
        )
        self._writers += [writer, far_writer]
        self._pumps += [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._forwards.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
