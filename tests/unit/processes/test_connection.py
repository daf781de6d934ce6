"""Messages over a pair of sockets."""

import asyncio
import socket
from typing import Any

from dragoman_service.processes.connection import MessageConnection

LARGE = b"x" * 1_000_000  # more than the buffers of a socket


class Peer:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.arrived = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.connection = MessageConnection(self._receive, self.has_ended.set)

    def _receive(self, message: Any) -> None:
        self.messages.append(message)
        self.arrived.set()

    async def until(self, num_messages: int) -> None:
        while len(self.messages) < num_messages:
            self.arrived.clear()
            await self.arrived.wait()


async def connected() -> tuple[Peer, Peer]:
    one, other = Peer(), Peer()
    ends = socket.socketpair()
    await one.connection.open(ends[0])
    await other.connection.open(ends[1])
    return one, other


async def test_messages_arrive_in_order_in_both_directions() -> None:
    one, other = await connected()

    for number in range(3):
        one.connection.send((number, LARGE))
        other.connection.send(number)
        await asyncio.sleep(0)
    await other.until(3)
    await one.until(3)

    assert other.messages == [(0, LARGE), (1, LARGE), (2, LARGE)]
    assert one.messages == [0, 1, 2]
    one.connection.close()
    await other.has_ended.wait()


async def test_closing_sends_all_messages_first() -> None:
    one, other = await connected()

    one.connection.send(LARGE)
    one.connection.send("last")
    one.connection.close()
    await asyncio.gather(one.has_ended.wait(), other.has_ended.wait())

    assert other.messages == [LARGE, "last"]
    one.connection.send("discarded")
    await asyncio.sleep(0)


async def test_exit_of_the_other_process_in_a_message_ends_the_connection() -> None:
    peer = Peer()
    ours, theirs = socket.socketpair()
    await peer.connection.open(ours)

    theirs.send(b"\0\0\0\0\0\0\0\x10incomplete")
    theirs.close()
    await peer.has_ended.wait()

    assert peer.messages == []
