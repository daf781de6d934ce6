"""Well-behaved clients during an attack: probes of `/healthz`, and translations over HTTP and gRPC.

Calls are scheduled at fixed times, and their latency counts from then, so a stall delays every call that is due.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, Self

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.cli.server_process import ServerProcess
from loadtests.generator.calls import Method, Reply
from loadtests.generator.client import Client
from loadtests.generator.metrics import RESIDENT_BYTES, sampling
from loadtests.generator.metrics import Sample as ProcessSample
from loadtests.generator.records import percentile
from loadtests.generator.server import Target
from loadtests.hostile.texts import CHEAP
from loadtests.scenarios.control_traffic import Caller, ControlTraffic

HEALTH, HTTP, GRPC = "healthz", "http", "grpc"  # names of the clients

_TIMEOUT_S: Final = 10.0
_INTERVALS_S: Final[Mapping[str, float]] = {HEALTH: 0.02, HTTP: 0.2, GRPC: 0.2}
_MEMORY_INTERVAL_S: Final = 0.05
_TEXT: Final = "Hello, world!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All calls of a period; the status of a call is OK or an error."""

    calls: Mapping[str, Sequence[Reply]]  # by client
    processes: Sequence[ProcessSample] = ()  # resources of the processes of the server

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
    def peak_memory_mb(self) -> float:
        """Largest resident memory of all processes of the server; shared pages count for each process."""
        return max((one.values.get(RESIDENT_BYTES, 0.0) for one in self.processes), default=0.0) / (1024 * 1024)

    @property
    def lost(self) -> Mapping[str, int]:
        """Failed calls by client."""
        return {name: sum(one.status != "OK" for one in calls) for name, calls in self.calls.items()}

    @property
    def errors(self) -> Sequence[str]:
        """Distinct errors."""
        failed = {(name, one.status) for name, calls in self.calls.items() for one in calls if one.status != "OK"}
        return [f"{name}: {status}" for name, status in sorted(failed)]


NO_SAMPLE: Final = Sample(calls={})


class Monitor(ControlTraffic):
    """The clients of a server while the context is open; `sample` has their calls."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        options = {"beamSize": 1, "maxTargetTokens": 3}
        body = json.dumps({"texts": [_TEXT], "sourceLanguage": "en", "targetLanguage": "de", "options": options})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = pb.TranslateRequest(texts=[_TEXT], source_language="en", target_language="de", options=CHEAP)
        message, target = request.SerializeToString(), Target(address=server.target, key=key)
        calls: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Any], Reply]]] = {
            HEALTH: (partial(_http, server.metrics_port), lambda http: _exchange(http, "GET", "/healthz")),
            HTTP: (
                partial(_http, server.http_port),
                lambda http: _exchange(http, "POST", "/v1/translate", body, headers),
            ),
            GRPC: (partial(Client, target), lambda one: one.call(Method.TRANSLATE, message, timeout_s=_TIMEOUT_S)),
        }
        callers = {
            name: Caller(connect=connect, calls=[call], each_s=_INTERVALS_S[name], is_scheduled=True)
            for name, (connect, call) in calls.items()
        }
        super().__init__(list(callers.values()))
        self._calls = {name: caller.replies for name, caller in callers.items()}
        self._pid, self._sampler = server.pid, ExitStack()
        self.sample = NO_SAMPLE

    def __enter__(self) -> Self:
        processes = self._sampler.enter_context(sampling(None, [self._pid], interval_s=_MEMORY_INTERVAL_S))
        self.sample = Sample(calls=self._calls, processes=processes)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._sampler.close()


def _http(port: int) -> AbstractContextManager[HTTPConnection]:
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    with suppress(OSError):  # the first exchange connects again
        connection.connect()
    return closing(connection)


def _exchange(connection: HTTPConnection, *request: Any) -> Reply:
    """Send a request on a persistent connection, which is opened again after an error; return OK or an error."""
    began_s = time.monotonic()
    try:
        connection.request(*request)
        response = connection.getresponse()
        response.read()
        status = "OK" if response.status == 200 else f"status {response.status}"
    except (OSError, HTTPException) as error:
        connection.close()
        status = str(error) or type(error).__name__
    return Reply(status=status, began_s=began_s, ended_s=time.monotonic())
