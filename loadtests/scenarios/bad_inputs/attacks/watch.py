"""Well-behaved clients during an attack: probes of `/healthz`, and translations over HTTP and gRPC.

Calls are scheduled at fixed times, and their latency counts from then, so a stall delays every call that is due.
"""

import asyncio
import gc
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import grpc

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.generator.records import percentile
from loadtests.hostile.inputs import CHEAP
from loadtests.scenarios.bad_inputs.attacks.payload import http_request

HEALTH, HTTP, GRPC = "healthz", "http", "grpc"  # names of the clients

_TIMEOUT_S: Final = 10.0
_INTERVALS_S: Final[Mapping[str, float]] = {HEALTH: 0.02, HTTP: 0.2, GRPC: 0.2}
_MAX_CONNECTIONS: Final = 16  # of each HTTP client
_TEXT: Final = "Hello, world!"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Visit:
    """One call; times in seconds on the monotonic clock."""

    due_s: float
    began_s: float
    ended_s: float
    error: str = ""  # empty: the response is right

    @property
    def latency_ms(self) -> float:
        """Milliseconds from the scheduled time to the response."""
        return 1000 * (self.ended_s - self.due_s)

    @property
    def lag_ms(self) -> float:
        """Delay of the client itself."""
        return 1000 * (self.began_s - self.due_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All calls of a period."""

    visits: Mapping[str, Sequence[Visit]]  # by client

    @property
    def stall_ms(self) -> float:
        """Longest latency of a probe."""
        return max((one.latency_ms for one in self.visits.get(HEALTH, ())), default=0.0)

    @property
    def p99_ms(self) -> float:
        """Latency of the probes at p99."""
        latencies = [one.latency_ms for one in self.visits.get(HEALTH, ())]
        return percentile(latencies, 0.99) if latencies else 0.0

    @property
    def lag_p99_ms(self) -> float:
        """Delay of the probing client at p99; beyond some milliseconds the machine is too busy to measure."""
        lags = [one.lag_ms for one in self.visits.get(HEALTH, ())]
        return percentile(lags, 0.99) if lags else 0.0

    @property
    def lost(self) -> Mapping[str, int]:
        """Failed calls by client."""
        return {name: sum(bool(one.error) for one in visits) for name, visits in self.visits.items()}

    @property
    def errors(self) -> Sequence[str]:
        """Distinct errors."""
        return sorted({f"{name}: {one.error}" for name, visits in self.visits.items() for one in visits if one.error})


NOTHING_SEEN: Final = Seen(visits={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Addresses for the clients, and their key."""

    health: tuple[str, int]
    http: tuple[str, int]
    grpc: str
    key: str


class Watch:
    """The clients, in a thread of their own while the context is open; `seen` is set at the end."""

    seen: Seen

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._visits: dict[str, list[Visit]] = {name: [] for name in _INTERVALS_S}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="watch", daemon=True)
        self._is_ready = threading.Event()
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._thread.start()
        self._is_ready.wait(_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.seen = Seen(visits=self._visits)

    async def _run(self) -> None:
        watched = self._watched
        probe = http_request("GET /healthz")
        request = pb.TranslateRequest(texts=[_TEXT], source_language="en", target_language="de", options=CHEAP)
        content = {"texts": [_TEXT], "sourceLanguage": "en", "targetLanguage": "de"}
        body = json.dumps({**content, "options": {"beamSize": 1, "maxTargetTokens": 3}}).encode()
        headers = ("Content-Type: application/json", f"Authorization: Bearer {watched.key}")
        post = http_request("POST /v1/translate", *headers, length=len(body)) + body
        health, http = PersistentConnections(watched.health), PersistentConnections(watched.http)
        async with grpc.aio.insecure_channel(watched.grpc) as channel:
            method = channel.unary_unary(Method.TRANSLATE.path, request_serializer=lambda one: one.SerializeToString())
            metadata = (("authorization", f"Bearer {watched.key}"),)

            async def call() -> None:
                await method(request, metadata=metadata, timeout=_TIMEOUT_S)

            callers: dict[str, Callable[[], Awaitable[object]]] = {
                HEALTH: lambda: health.exchange(probe),
                HTTP: lambda: http.exchange(post),
                GRPC: call,
            }
            for caller in callers.values():  # connect before the first measured call
                with suppress(Exception):
                    await asyncio.wait_for(caller(), _TIMEOUT_S)
            self._is_ready.set()
            await asyncio.gather(*(self._repeat(name, caller) for name, caller in callers.items()))
        health.close()
        http.close()

    async def _repeat(self, name: str, caller: Callable[[], Awaitable[object]]) -> None:
        """Begin each call when it is due, at least one, until the watch is over; wait for those in flight."""
        running = set[asyncio.Task[None]]()
        due_s = time.monotonic()
        while True:
            task = asyncio.create_task(self._visit(name, caller, due_s))
            running.add(task)
            task.add_done_callback(running.discard)
            due_s += _INTERVALS_S[name]
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if self._is_over.is_set():
                break
        if running:
            await asyncio.wait(running)

    async def _visit(self, name: str, caller: Callable[[], Awaitable[object]], due_s: float) -> None:
        began_s, error = time.monotonic(), ""
        try:
            await asyncio.wait_for(caller(), _TIMEOUT_S)
        except TimeoutError:
            error = f"no response within {_TIMEOUT_S:g} s"
        except grpc.aio.AioRpcError as failure:
            error = failure.code().name
        except (OSError, EOFError, ValueError) as failure:
            error = str(failure) or type(failure).__name__
        self._visits[name].append(Visit(due_s, began_s, time.monotonic(), error))


class PersistentConnections:
    """At most 16 connections to one address, each for one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of the response; raises ValueError if its status is not 200."""
        async with self._slots:
            reader, writer = self._free.pop() if self._free else await asyncio.open_connection(*self._address)
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
            except BaseException:
                writer.close()
                raise
            self._free.append((reader, writer))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ValueError(head.partition(b"\r\n")[0].decode("latin-1"))
        return body

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self._free:
            writer.close()
