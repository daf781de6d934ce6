"""Sends attacks from a process of its own, so that it does not disturb the measurement."""

import contextlib
import itertools
import multiprocessing
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

import grpc

from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.calls import Method, read_reply
from loadtests.hostile.attacks import ATTACKS, CLOSED, LEFT, TIMEOUT, Attack, Credentials, Load, Payload
from loadtests.scenarios.control_traffic import connect

TIMEOUT_S: Final = 10.0  # of one exchange

_TASK_TIMEOUT_S: Final = 60.0
_AFTER_ANSWER_S: Final = 1.0  # how long a client continues to send after the response
_PART_INTERVAL_S: Final = 0.1  # between the parts of one request
_DRIP_INTERVAL_S: Final = 0.25
_PAUSES_S: Final = {CLOSED: 0.005, "UNAVAILABLE": 0.05}  # after an exchange that the server ended at once
_CONNECT_INTERVAL_S: Final = 0.0025
_RECEIVE_BYTES: Final = 65_536
_HEAD: Final = re.compile(rb"HTTP/1\.1 (\d{3})[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CONTINUE: Final = b"100"

Address = tuple[str, int]


Statuses = Mapping[str, int]  # number of exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Local ports of the server by name, and credentials."""

    ports: Mapping[str, int]
    credentials: Credentials


class Attacker(ProcessPoolExecutor):
    """The process that sends attacks."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(1, multiprocessing.get_context("spawn"))
        self._addresses = addresses

    def begin(
        self, attacks: Sequence[Attack], *, seconds: float | None, size: int | None = None
    ) -> Callable[[], Sequence[Statuses]]:
        """Begin attacks at the same time, for a time or only once; return when their payloads are ready.

        The returned function waits for the end and returns the statuses of each. Both raise ServerProcessError if an
        attack fails.
        """
        sizes = {attack.name: size or attack.size for attack in attacks}
        self._wait(self.submit(_prepare, sizes, self._addresses.credentials))
        return partial(self._wait, self.submit(_send, sizes, seconds, self._addresses))

    def _wait(self, task: Future[Any]) -> Any:
        try:
            return task.result(_TASK_TIMEOUT_S)
        except (RuntimeError, TimeoutError) as error:
            raise ServerProcessError(f"the attacker failed: {str(error) or 'timeout'}") from error

    def __exit__(self, *exception: Any) -> bool | None:
        for process in multiprocessing.active_children():  # the attacker, which may still send
            process.kill()
        return super().__exit__(*exception)


@lru_cache(maxsize=8)
def _payload(name: str, size: int, credentials: Credentials) -> Payload:
    return ATTACKS[name].payload(size, credentials)


def _prepare(sizes: Mapping[str, int], credentials: Credentials) -> None:
    for name, size in sizes.items():
        _payload(name, size, credentials)


def _send(sizes: Mapping[str, int], seconds: float | None, addresses: Addresses) -> Sequence[Statuses]:
    def send(name: str, size: int) -> Statuses:
        try:
            return _attack(ATTACKS[name], _payload(name, size, addresses.credentials), addresses, seconds)
        except (grpc.RpcError, OSError, ValueError) as error:
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from None

    with ThreadPoolExecutor(len(sizes)) as pool:
        return list(pool.map(send, sizes, sizes.values()))


def _attack(attack: Attack, payload: Payload, addresses: Addresses, seconds: float | None) -> Statuses:
    """Send a payload on all connections of an attack for a time; None: once, to measure the whole work."""
    load = attack.load
    if seconds is None:
        load = replace(load, leave_after_s=0.0, num_connections=1, way="repeat" if load.way != "leave" else "leave")
    until_s = time.monotonic() + (0.0 if load.is_once else seconds or 0.0)
    hosts = itertools.cycle(f"127.0.0.{2 + number}" for number in range(load.num_hosts))
    sources = list(itertools.islice(hosts, load.num_connections))
    address = "127.0.0.1", addresses.ports[attack.port]
    if load.way in ("drip", "unread"):
        return _hold(payload, address, sources, until_s)
    with ThreadPoolExecutor(len(sources)) as pool:
        return dict(sum(pool.map(partial(_repeat, load, payload, address, until_s), sources), Counter[str]()))


def _repeat(load: Load, payload: Payload, address: Address, until_s: float, source: str) -> Counter[str]:
    """Repeat an exchange, at least once."""
    statuses = Counter[str]()
    with contextlib.ExitStack() as stack:
        exchange = partial(_exchange, load, payload, address, source)
        if payload.path:
            client = stack.enter_context(connect(f"{address[0]}:{address[1]}"))
            exchange = partial(_call, client.channels[0], load, payload)
        elif load.way == "connect":
            exchange = partial(_connect, address, source)
        while True:
            status = exchange()
            statuses[status] += 1
            if time.monotonic() >= until_s:
                return statuses
            time.sleep(_PAUSES_S.get(status, 0.0))


def _connect(address: Address, source: str) -> str:
    time.sleep(_CONNECT_INTERVAL_S)
    with contextlib.suppress(OSError):
        _open(address, source).close()
    return LEFT


def _exchange(load: Load, payload: Payload, address: Address, source: str) -> str:
    """Send a payload on a new connection; return the status of the last response."""
    leaves = load.way == "leave"
    leave_s = load.leave_after_s if leaves else 0.0
    until_s = time.monotonic() + (leave_s or TIMEOUT_S)
    try:
        with _open(address, source) as connection:
            return _read_answer(connection, payload, until_s, leaves=leaves)
    except OSError:
        return CLOSED


def _open(address: Address, source: str) -> socket.socket:
    connection = socket.create_connection(address, timeout=TIMEOUT_S, source_address=(source, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def _read_answer(connection: socket.socket, payload: Payload, until_s: float, *, leaves: bool) -> str:
    """Send and read at the same time, because the server may respond early."""
    received, parts = bytearray(), [memoryview(part) for part in payload.parts]
    num_sent = 0
    while (left_s := until_s - time.monotonic()) > 0:
        readable, writable, _ = select.select([connection], [connection] if parts else [], [], left_s)
        if readable:
            if not (content := _receive(connection)):
                return _status(received) or CLOSED
            received += content
            if leaves and (status := _status(received)):  # the first part of the response
                return LEFT if status == "200" else status
            if is_complete(received, payload.num_answers):
                if not parts:
                    return _status(received)
                until_s = min(until_s, time.monotonic() + _AFTER_ANSWER_S)
        if writable:
            try:
                num_sent += connection.send(parts[0][num_sent:])
            except ConnectionError:  # a response can still be read
                parts, num_sent = [], 0
                continue
            if num_sent == len(parts[0]):
                parts, num_sent = parts[1:], 0
                time.sleep(_PART_INTERVAL_S if parts else 0.0)
    return LEFT if leaves else _status(received) or TIMEOUT


def _receive(connection: socket.socket) -> bytes:
    """Return received bytes, empty if the server has closed the connection."""
    try:
        return connection.recv(_RECEIVE_BYTES)
    except ConnectionError:
        return b""


def is_complete(received: bytes | bytearray, num_answers: int) -> bool:
    """Return whether a number of responses with a length have been received."""
    position = 0
    for _ in range(num_answers):
        while (head := _HEAD.match(received, position)) and head[1] == _CONTINUE:
            position = head.end()
        if head is None or (length := _LENGTH.search(head[2])) is None:
            return False
        position = head.end() + int(length[1])
        if len(received) < position:
            return False
    return True


def _status(received: bytes | bytearray) -> str:
    """Return the status of the last response other than `100 Continue`, or an empty text."""
    codes = [head[1].decode() for head in _HEAD.finditer(received) if head[1] != _CONTINUE]
    return codes[-1] if codes else ""


def _hold(payload: Payload, address: Address, sources: Sequence[str], until_s: float) -> Counter[str]:
    """Open all connections, send the parts, then the rest byte by byte; count how they end."""
    statuses = Counter[str]()
    opened = list[socket.socket]()
    for source in sources:
        try:
            opened.append(_open(address, source))
            _send_all(opened[-1], b"".join(payload.parts), until_s)
        except OSError:
            statuses[CLOSED] += 1
        if time.monotonic() > until_s:
            break
    position = 0
    while time.monotonic() < until_s:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.send(payload.rest[position : position + 1])
        position += 1
        time.sleep(min(_DRIP_INTERVAL_S, max(0.0, until_s - time.monotonic())))
    for connection in opened:
        try:
            statuses[_status(connection.recv(_RECEIVE_BYTES)) or CLOSED] += 1
        except BlockingIOError:
            statuses[TIMEOUT] += 1
        except OSError:
            statuses[CLOSED] += 1
        connection.close()
    return statuses


def _send_all(connection: socket.socket, content: bytes, until_s: float) -> None:
    """Send as much as the server accepts within half a second."""
    view, until_s = memoryview(content), min(until_s, time.monotonic() + 0.5)
    while view and (left_s := until_s - time.monotonic()) > 0:
        if select.select([], [connection], [], left_s)[1]:
            view = view[connection.send(view) :]


def _call(channel: grpc.Channel, load: Load, payload: Payload) -> str:
    """Make a call; a client that leaves cancels it with the first message of the response, or after its time."""
    leaves = load.way == "leave"
    began_s, timeout_s = time.monotonic(), (load.leave_after_s if leaves else 0.0) or TIMEOUT_S
    metadata = (("authorization", f"Bearer {payload.key}"),) if payload.key else ()
    (message,) = payload.parts
    if payload.path == Method.TRANSLATE_STREAM.path:
        call = channel.stream_stream(payload.path)(iter([message]), timeout=TIMEOUT_S, metadata=metadata)
    else:
        call = channel.unary_stream(payload.path)(message, timeout=TIMEOUT_S, metadata=metadata)
    timer = threading.Timer(timeout_s, call.cancel)
    timer.start()
    reply = read_reply(call, began_s=began_s, on_first=call.cancel if leaves else lambda: None)
    timer.cancel()
    if reply.status == "CANCELLED":
        return LEFT if leaves else TIMEOUT
    return TIMEOUT if reply.status == "DEADLINE_EXCEEDED" else reply.status
