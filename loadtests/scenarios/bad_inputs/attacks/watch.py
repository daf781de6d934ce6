"""Well-behaved callers of a server under attack: probes of `/healthz`, and translations over HTTP and gRPC.

Calls are due at fixed times, whatever became of the calls before, and their latency counts from then: a stall of the
server delays every call that is due meanwhile.
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
from types import TracebackType
from typing import Final, Self

import grpc

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.generator.records import percentile
from loadtests.scenarios.bad_inputs.inputs import CHEAP

HEALTH, HTTP, GRPC = "healthz", "http", "grpc"
"""Names of the callers."""

_TIMEOUT_S: Final = 10.0
_INTERVALS_S: Final[Mapping[str, float]] = {HEALTH: 0.02, HTTP: 0.2, GRPC: 0.2}
_MAX_CONNECTIONS: Final = 16  # of each caller over HTTP
_TEXT: Final = "Hello, world!"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Visit:
    """One call of a caller; times in seconds on the monotonic clock."""

    due_s: float
    began_s: float  # when its caller was ready to send it
    ended_s: float
    error: str = ""  # empty: it was answered rightly

    @property
    def latency_ms(self) -> float:
        """Milliseconds from when it was due to its answer."""
        return 1000 * (self.ended_s - self.due_s)

    @property
    def lag_ms(self) -> float:
        """How late its caller was."""
        return 1000 * (self.began_s - self.due_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All calls of the callers during some time."""

    visits: Mapping[str, Sequence[Visit]]  # by the name of the caller

    @property
    def stall_ms(self) -> float:
        """The longest that a probe of `/healthz` has waited."""
        return max((one.latency_ms for one in self.visits.get(HEALTH, ())), default=0.0)

    @property
    def p99_ms(self) -> float:
        """Latency of `/healthz` at p99."""
        latencies = [one.latency_ms for one in self.visits.get(HEALTH, ())]
        return percentile(latencies, 0.99) if latencies else 0.0

    @property
    def lag_p99_ms(self) -> float:
        """How late the probes were sent, at p99: beyond some milliseconds the machine is too busy to measure."""
        lags = [one.lag_ms for one in self.visits.get(HEALTH, ())]
        return percentile(lags, 0.99) if lags else 0.0

    @property
    def lost(self) -> Mapping[str, int]:
        """Calls without the right answer, by the name of the caller."""
        return {name: sum(bool(one.error) for one in visits) for name, visits in self.visits.items()}

    @property
    def errors(self) -> Sequence[str]:
        """What became of calls that were lost, each kind once."""
        return sorted({f"{name}: {one.error}" for name, visits in self.visits.items() for one in visits if one.error})


NOTHING_SEEN: Final = Seen(visits={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Where the callers call, and the key of those who translate."""

    health: tuple[str, int]
    http: tuple[str, int]
    grpc: str
    key: str


class Watch:
    """The callers, in a thread of their own from `with` to its end; `seen` is set then."""

    seen: Seen

    def __init__(self, watched: Watched) -> None:
        """Prepare the callers."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.seen = Seen(visits=self._visits)

    async def _run(self) -> None:
        watched = self._watched
        probe = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        request = pb.TranslateRequest(texts=[_TEXT], source_language="en", target_language="de", options=CHEAP)
        content = {"texts": [_TEXT], "sourceLanguage": "en", "targetLanguage": "de"}
        body = json.dumps({**content, "options": {"beamSize": 1, "maxTargetTokens": 3}}).encode()
        head = "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        post = f"{head}\r\nAuthorization: Bearer {watched.key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        health, http = KeptConnections(watched.health), KeptConnections(watched.http)
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
            for caller in callers.values():  # connections stand before the first call counts
                with suppress(Exception):
                    await asyncio.wait_for(caller(), _TIMEOUT_S)
            self._is_ready.set()
            await asyncio.gather(*(self._repeat(name, caller) for name, caller in callers.items()))
        health.close()
        http.close()

    async def _repeat(self, name: str, caller: Callable[[], Awaitable[object]]) -> None:
        """Begin a call each time that one is due, at least once, until the watch is over; wait for those under way."""
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
            error = f"no answer within {_TIMEOUT_S:g} s"
        except grpc.aio.AioRpcError as failure:
            error = failure.code().name
        except (OSError, EOFError, ValueError) as failure:
            error = str(failure) or type(failure).__name__
        self._visits[name].append(Visit(due_s, began_s, time.monotonic(), error))


class KeptConnections:
    """Connections to one address, each used for one request after the other."""

    def __init__(self, address: tuple[str, int], *, count: int = _MAX_CONNECTIONS) -> None:
        """Open at most so many connections; more requests wait."""
        self._address = address
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._room = asyncio.Semaphore(count)

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer; ValueError if its status is not 200."""
        async with self._room:
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
