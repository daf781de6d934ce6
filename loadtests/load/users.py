"""Locust users that translate: open loop with calls at their due times, or a closed loop (--rate 0)."""

import itertools
import logging
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import gevent
from gevent.lock import BoundedSemaphore
from gevent.pool import Group
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError
from google.protobuf import json_format
from locust import User
from locust.exception import StopUser
from locust.stats import RequestStats, StatsEntry

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Outcome, PlannedCall
from loadtests.generator.client import CONNECT_TIMEOUT_S, NUM_CHANNELS, Client
from loadtests.generator.flags import workload_of
from loadtests.generator.records import CallRecord
from loadtests.generator.server import target_of
from loadtests.generator.texts import Profile
from loadtests.generator.workload import Mix, Workload

_logger = logging.getLogger(__name__)
_CALLS_OF_A_WORKER: Final = 2**32  # so that workers make different calls
_NUM_CONNECTIONS: Final = 1000  # of the HTTP API, for each process
_TRANSLATE_PATH: Final = "/v1/translate"
_OUTCOMES: Final = {200: Outcome.ANSWERED, 429: Outcome.REJECTED, 504: Outcome.LATE}


LAG: Final = "generator lag"
STAGE: Final = "stage of the server"
_STAGES: Final = ("queue", "encode", "decode", "text")
timings: Final = RequestStats()  # of this process and its workers, in addition to response times


def add_timings(call: CallRecord) -> None:
    """Add the lag of the generator, and the stages of an answered call if it has any."""
    timings.log_request(LAG, "", 1000 * call.lag_s, 0)
    if call.outcome is Outcome.ANSWERED and call.queue_s is not None:
        for stage in _STAGES:
            timings.log_request(STAGE, stage, 1000 * getattr(call, f"{stage}_s"), 0)


def merge_timings(taken: Iterable[Any]) -> None:
    """Add the timings that a worker has serialized."""
    for serialized in taken:
        entry = StatsEntry.unserialize(serialized, timings)
        timings.get(entry.name, entry.method).extend(entry)


class CallError(Exception):
    """A call that was rejected, late or failed, in Locust's table of failures."""


class TranslatingUser(User):  # type: ignore[misc]  # locust is skipped by mypy
    """Makes the calls of a workload over gRPC."""

    abstract = True
    profile: ClassVar[Profile] = Profile.SENTENCE
    client: ClassVar[Any] = None  # of all users of the class in this process
    calls: ClassVar[Iterator[PlannedCall]]
    prepared: ClassVar[set[type[User]]] = set()  # classes, in this process, for this test
    preparing: ClassVar[Any] = BoundedSemaphore()
    protocol: ClassVar[str] = "gRPC"

    @classmethod
    def workload(cls, options: Any) -> Workload:
        """Return the workload; raises ValueError for invalid flags."""
        return workload_of(options, profile=cls.profile)

    @classmethod
    def connect(cls, options: Any, host: str) -> Any:
        """Return a client; raises ConnectionError, and OSError for files of the flags."""
        return Client(target_of(options, host), num_channels=NUM_CHANNELS, connect_timeout_s=CONNECT_TIMEOUT_S)

    @classmethod
    def prepare(cls, options: Any, host: str, worker_index: int = 0) -> None:
        """Prepare this process for a test; raises ValueError and OSError."""
        first = max(0, worker_index) * _CALLS_OF_A_WORKER
        cls.calls = map(cls.workload(options).calls(options.seed).call, itertools.count(first))
        if cls.client is not None:
            cls.client.close()
        cls.client = cls.connect(options, host)

    def on_start(self) -> None:
        """Start without calls in flight; the first user of a class prepares it, as a worker has its flags by then."""
        self.in_flight = Group()
        runner = self.environment.runner
        with self.preparing:
            if type(self) not in self.prepared:
                try:
                    index = getattr(runner, "worker_index", 0)
                    self.prepare(self.environment.parsed_options, self.environment.host, index)
                except (OSError, ValueError) as error:
                    _logger.error("%s: %s", type(self).__name__, error)  # noqa: TRY400 - the message is enough
                    gevent.spawn(runner.quit)
                    raise StopUser from error
                self.prepared.add(type(self))
        self.due_s: float | None = None

    def on_stop(self) -> None:
        """Wait for the calls in flight, within --stop-timeout."""
        self.in_flight.join()

    def wait_time(self) -> float:
        """Return the time until the next call is due; gaps are exponential, so that all users are a Poisson process."""
        options: Any = self.environment.parsed_options
        if not options.rate:
            return random.uniform(0.5, 1.5) * float(options.pause)
        now_s = time.monotonic()
        due_s = (now_s if self.due_s is None else self.due_s) + random.expovariate(options.rate)
        self.due_s = due_s
        return max(0.0, due_s - now_s)

    def call(self) -> None:
        """Make a call, or begin the one that is due; the first one is due after a gap."""
        if not self.environment.parsed_options.rate:
            self._record(next(self.calls), time.monotonic())
        elif self.due_s is not None:
            self.in_flight.spawn(self._record, next(self.calls), self.due_s)

    tasks: ClassVar = [call]

    def make(self, planned: PlannedCall, due_s: float) -> CallRecord:
        """Make a call and wait for its end."""
        record: CallRecord = self.client.make(planned, due_s)
        return record

    def _record(self, planned: PlannedCall, due_s: float) -> None:
        """Make a call and report it to Locust, whose percentiles are of accepted calls."""
        record = self.make(planned, due_s)
        add_timings(record)
        is_accepted = record.outcome in {Outcome.ANSWERED, Outcome.LATE}
        is_ok = record.outcome in {Outcome.ANSWERED, Outcome.LEFT}  # left: cancelled as planned
        self.environment.events.request.fire(
            request_type=self.protocol,
            name=record.method,
            response_time=1000 * record.latency_s if is_accepted else None,
            response_length=0,
            exception=None if is_ok else CallError(f"{record.outcome.value}: {record.status}"),
            context={},
        )


class ChatUser(TranslatingUser):
    """Sends short sentences."""

    profile = Profile.CHAT


class SentenceUser(TranslatingUser):
    """Sends sentences."""


class ParagraphUser(TranslatingUser):
    """Sends paragraphs."""

    profile = Profile.PARAGRAPH


class DocumentUser(TranslatingUser):
    """Sends documents, whose responses are streams of sentences."""

    profile = Profile.DOCUMENT


class MixedUser(TranslatingUser):
    """Sends texts of all lengths; one request in ten has the priority bulk, unless --priorities is given."""

    profile = Profile.MIXED

    @classmethod
    def workload(cls, options: Any) -> Workload:
        """See `TranslatingUser`."""
        given = {} if options.workload_priorities else {"priorities": Mix({"interactive": 9.0, "bulk": 1.0})}
        return workload_of(options, profile=cls.profile, **given)


class LinesUser(TranslatingUser):
    """Sends the lines of the file --lines."""

    profile = Profile.LINES


class HttpApiUser(TranslatingUser):
    """Sends sentences to the HTTP API."""

    protocol = "HTTP"

    @classmethod
    def workload(cls, options: Any) -> Workload:
        """See `TranslatingUser`; also checks --http-url."""
        if urlsplit(options.http_url).scheme not in {"http", "https"}:
            raise ValueError(f"--http-url {options.http_url!r}: expected http://HOST:PORT")
        return workload_of(options, profile=cls.profile, methods=Mix({Method.TRANSLATE: 1.0}))

    @classmethod
    def connect(cls, options: Any, host: str) -> Any:
        """See `TranslatingUser`."""
        key = target_of(options, host).key
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        timeout_s = cls.workload(options).deadline_s
        limits = {"concurrency": _NUM_CONNECTIONS, "network_timeout": timeout_s}
        return HTTPClient.from_url(options.http_url, headers=headers, **limits)

    def make(self, planned: PlannedCall, due_s: float) -> CallRecord:
        """Send a request and wait for its response; a rejection has a status with Retry-After."""
        body = json_format.MessageToJson(pb.TranslateRequest.FromString(planned.messages[0]))
        sent_s = time.monotonic()
        try:
            response = self.client.post(_TRANSLATE_PATH, body)
            response.read()
            status = str(response.status_code)
            outcome = _OUTCOMES.get(response.status_code, Outcome.ERROR)
            if outcome is Outcome.REJECTED and response.get("Retry-After") is None:
                outcome, status = Outcome.ERROR, f"{status} without Retry-After"
        except TimeoutError:
            outcome, status = Outcome.LATE, "timeout at the client"
        except (OSError, HTTPParseError) as error:
            outcome, status = Outcome.ERROR, f"{type(error).__name__}: {error}"
        return CallRecord(
            planned_s=due_s,
            sent_s=sent_s,
            ended_s=time.monotonic(),
            method=f"POST {_TRANSLATE_PATH}",
            outcome=outcome,
            status=status,
            num_texts=planned.num_texts,
        )
