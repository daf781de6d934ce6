"""Messages between the owner and a front end, over a pair of sockets that no other process can reach."""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, cast

_LENGTH: Final = struct.Struct("!Q")


class MessageConnection(asyncio.Protocol):
    """Sends and receives pickled messages in order; not thread-safe.

    The messages of one iteration of the event loop are sent together.
    """

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        """Call `on_message` for each message and `on_end` once, when the other process has closed or exited."""
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._unsent: list[Any] = []

    async def open(self, end: socket.socket) -> None:
        """Use one end of a pair of sockets, which this takes over."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def send(self, message: Any) -> None:
        """Send a message; a closed connection discards it."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """Close the connection after all messages were sent."""
        self._flush()
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to send and receive."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Receive the messages that are complete."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            messages = pickle.loads(self._received[_LENGTH.size : end])  # noqa: S301 - of a process of this server
            del self._received[:end]
            for message in messages:
                self._on_message(message)

    def connection_lost(self, _error: Exception | None) -> None:
        """End the connection."""
        self._transport = None
        self._on_end()

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if messages and self._transport and not self._transport.is_closing():
            payload = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._transport.write(_LENGTH.pack(len(payload)) + payload)
