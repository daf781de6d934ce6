"""Well-behaved clients during an attack: probes of `/healthz`, and translations over HTTP and gRPC.

Calls are scheduled at fixed times, and their latency counts from then, so a stall delays every call that is due.
"""

import gc
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Final, Self

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.client import Client
from loadtests.generator.records import CallRecord, percentile
from loadtests.generator.server import Target
from loadtests.hostile.inputs import CHEAP

HEALTH, HTTP, GRPC = "healthz", "http", "grpc"  # names of the clients

_TIMEOUT_S: Final = 10.0
_INTERVALS_S: Final[Mapping[str, float]] = {HEALTH: 0.02, HTTP: 0.2, GRPC: 0.2}
_MAX_CONCURRENT: Final = 16  # calls of each client
_TEXT: Final = "Hello, world!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All calls of a period; the status of a call is OK or an error."""

    calls: Mapping[str, Sequence[CallRecord]]  # by client

    @property
    def probes_ms(self) -> Sequence[float]:
        """Latencies of the probes."""
        return [1000 * one.latency_s for one in self.calls.get(HEALTH, ())]

    @property
    def stall_ms(self) -> float:
        """Longest latency of a probe."""
        return max(self.probes_ms, default=0.0)

    @property
    def p99_ms(self) -> float:
        """Latency of the probes at p99."""
        return percentile(self.probes_ms, 0.99) if self.probes_ms else 0.0

    @property
    def lag_p99_ms(self) -> float:
        """Delay of the probing client at p99; beyond some milliseconds the machine is too busy to measure."""
        lags = [1000 * one.lag_s for one in self.calls.get(HEALTH, ())]
        return percentile(lags, 0.99) if lags else 0.0

    @property
    def lost(self) -> Mapping[str, int]:
        """Failed calls by client."""
        return {name: sum(one.status != "OK" for one in calls) for name, calls in self.calls.items()}

    @property
    def errors(self) -> Sequence[str]:
        """Distinct errors."""
        failed = {(name, one.status) for name, calls in self.calls.items() for one in calls if one.status != "OK"}
        return [f"{name}: {status}" for name, status in sorted(failed)]


NOTHING_SEEN: Final = Seen(calls={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Addresses for the clients, and their key."""

    health: tuple[str, int]
    http: tuple[str, int]
    grpc: str
    key: str


class Watch:
    """The clients, each in threads of its own while the context is open; `seen` is set at the end."""

    seen: Seen

    def __init__(self, watched: Watched) -> None:
        options = {"beamSize": 1, "maxTargetTokens": 3}
        body = json.dumps({"texts": [_TEXT], "sourceLanguage": "en", "targetLanguage": "de", "options": options})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {watched.key}"}
        request = pb.TranslateRequest(texts=[_TEXT], source_language="en", target_language="de", options=CHEAP)
        message = request.SerializeToString()
        self._client = Client(Target(address=watched.grpc, key=watched.key))
        self._health, self._http = PersistentConnections(watched.health), PersistentConnections(watched.http)
        callers: dict[str, Callable[[], str]] = {
            HEALTH: lambda: self._health.exchange("GET", "/healthz"),
            HTTP: lambda: self._http.exchange("POST", "/v1/translate", body, headers),
            GRPC: lambda: self._client.call(Method.TRANSLATE, message, timeout_s=_TIMEOUT_S).status,
        }
        self._callers = callers
        self._calls: dict[str, list[CallRecord]] = {name: [] for name in callers}
        self._threads = [threading.Thread(target=self._repeat, args=one, daemon=True) for one in callers.items()]
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        for call in self._callers.values():  # connect before the first measured call
            call()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self.seen = Seen(calls=self._calls)
        self._client.__exit__()
        self._health.close()
        self._http.close()

    def _repeat(self, name: str, call: Callable[[], str]) -> None:
        """Begin each call when it is due, at least one, until the watch is over; wait for those in flight."""

        def make(due_s: float, sent_s: float) -> None:
            status = call()
            outcome = Outcome.ANSWERED if status == "OK" else Outcome.ERROR
            ended_s = time.monotonic()
            call_record = CallRecord(planned_s=due_s, sent_s=sent_s, ended_s=ended_s, outcome=outcome, status=status)
            self._calls[name].append(call_record)

        with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
            due_s = time.monotonic()
            is_over = False
            while not is_over:
                pool.submit(make, due_s, time.monotonic())
                due_s += _INTERVALS_S[name]
                is_over = self._is_over.wait(max(0.0, due_s - time.monotonic()))


class PersistentConnections:
    """Connections to one address, each for one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._free: deque[HTTPConnection] = deque()

    def exchange(self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] = {}) -> str:
        """Send a request and wait for its response; return OK or an error."""
        connection = HTTPConnection(*self._address, timeout=_TIMEOUT_S)
        with suppress(IndexError):
            connection = self._free.pop()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            return str(error) or type(error).__name__
        self._free.append(connection)
        return "OK" if response.status == 200 else f"status {response.status}"

    def close(self) -> None:
        """Close all connections."""
        while self._free:
            self._free.pop().close()
