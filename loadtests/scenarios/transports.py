"""Compares HTTP with gRPC on kept connections: latency of each request, and requests per second."""

import argparse
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Self
from urllib.parse import urlsplit

from dragoman.v1 import translation_pb2 as pb
from google.protobuf import json_format

from loadtests.generator.flags import within
from loadtests.generator.records import CallRecord, Percentiles, write_records
from loadtests.report.report import Report, circumstances, markdown, rounded, unclean_end
from loadtests.generator.server import Target
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.workload import Workload

NAME: Final = "transports"
DESCRIPTION: Final = """\
Sends requests over kept connections to one server: GET /healthz, POST /v1/translate, and Translate over gRPC with the
same texts. Each connection sends its next request when it has the answer to the one before. The three take turns of a
second, first on one connection, then on four, so that other work on the machine disturbs all alike.

The clients differ: over HTTP it is a plain socket, over gRPC the library for Python, which takes some tenths of a
millisecond for a call. Without --target a server is started on free ports of this machine.

OUTPUT gets transports.json, calls.jsonl (the latency of every request), and the log of a server that was started.

exit codes: 0 every request was answered; 1 one was not, a limit was exceeded, or the server failed; 2 wrong flags"""

WORKLOAD: Final = Workload(options='{"beamSize": 1}')

_NUM_CONNECTIONS: Final = (1, 4)
_NUM_ROUNDS: Final = {"full": 8, "short": 2}
_ROUND_S: Final = {"full": 1.0, "short": 0.5}
_NUM_REQUESTS: Final = 64  # different ones
_TIMEOUT_S: Final = 30.0
_RECEIVE_BYTES: Final = 65_536
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEALTH: Final = "GET /healthz"
_HTTP: Final = "POST /v1/translate"
_GRPC: Final = "gRPC Translate"

Caller = Callable[[int], str]
"""Makes a call, given its number, and returns its status."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this comparison alone."""
    add = parser.add_argument
    add("--http-url", metavar="URL", help="of the API of --target, such as http://localhost:9464")
    add(
        "--max-overhead-ms",
        type=within(0.001, 1e6),
        metavar="MS",
        help="limit for the median of HTTP above gRPC (none)",
    )
    add("--min-health-per-s", type=within(0.001, 1e6), metavar="N", help="limit for /healthz on one connection (none)")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return what compares the transports of a server; ValueError or OSError if flags or texts are wrong."""
    if options.target and not options.http_url:
        raise ValueError("--target needs --http-url")
    if options.http_url and urlsplit(options.http_url).scheme != "http":
        raise ValueError(f"--http-url {options.http_url}: expected http://HOST:PORT")
    calls = workload.calls(options.seed)
    messages = [calls.call(number, method=Method.TRANSLATE.value).messages[0] for number in range(_NUM_REQUESTS)]
    return partial(_measure, options, messages)


def _measure(options: argparse.Namespace, messages: Sequence[bytes], target: Target) -> Report:
    address = _address(options, target)
    bodies = [json_format.MessageToJson(pb.TranslateRequest.FromString(one)).encode() for one in messages]
    authorization = [f"Authorization: Bearer {target.key}"] if target.key else []
    posts = [_request(address, "POST /v1/translate", body, *authorization) for body in bodies]
    make_callers: dict[str, Callable[[ExitStack], Caller]] = {
        _HEALTH: lambda stack: stack.enter_context(KeptConnection(address, [_request(address, "GET /healthz")])).call,
        _HTTP: lambda stack: stack.enter_context(KeptConnection(address, posts)).call,
        _GRPC: lambda stack: _grpc_caller(stack.enter_context(target.channel()), messages, target.key),
    }
    records: dict[tuple[str, int], list[CallRecord]] = {}
    with ExitStack() as stack:
        callers = {name: [make(stack) for _ in range(max(_NUM_CONNECTIONS))] for name, make in make_callers.items()}
        for name, opened in callers.items():  # warm up
            list(_round(name, opened, 0.3))
        rounds = range(_NUM_ROUNDS[options.mode])
        for count, _, (name, opened) in itertools.product(_NUM_CONNECTIONS, rounds, callers.items()):
            made = _round(name, opened[:count], _ROUND_S[options.mode])
            records.setdefault((name, count), []).extend(made)
    write_records(options.output / "calls.jsonl", [one for made in records.values() for one in made])
    seconds = _ROUND_S[options.mode] * len(rounds)
    return report_of([Row.of(*cell, made, seconds) for cell, made in records.items()], options, unclean_end(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one transport on so many connections."""

    name: str
    num_connections: int
    requests_per_s: float
    latency: Percentiles
    statuses: Sequence[str]  # of failures

    @classmethod
    def of(cls, name: str, num_connections: int, records: Sequence[CallRecord], seconds: float) -> Self:
        """Return the figures of calls that were made within some seconds."""
        return cls(
            name=name,
            num_connections=num_connections,
            requests_per_s=len(records) / seconds,
            latency=Percentiles.of([record.latency_s for record in records]),
            statuses=sorted({record.status for record in records if record.outcome is not Outcome.ANSWERED}),
        )


def report_of(rows: Sequence[Row], options: argparse.Namespace, broken: Sequence[str] = ()) -> Report:
    """Judge the figures: every request must be answered, and limits that flags set must hold."""
    of = {(row.name, row.num_connections): row for row in rows}
    overheads = {count: of[_HTTP, count].latency.p50_ms - of[_GRPC, count].latency.p50_ms for count in _NUM_CONNECTIONS}
    health_per_s = of[_HEALTH, 1].requests_per_s
    failed = [f"{row.name} on {row.num_connections}: {', '.join(row.statuses)}" for row in rows if row.statuses]
    not_held = [*broken, *failed]
    if options.max_overhead_ms is not None and overheads[1] > options.max_overhead_ms:
        not_held.append(f"HTTP takes {overheads[1]:.2f} ms more than gRPC, the limit is {options.max_overhead_ms:g}")
    if options.min_health_per_s is not None and health_per_s < options.min_health_per_s:
        not_held.append(
            f"/healthz is answered {health_per_s:.0f} times a second, at least {options.min_health_per_s:g}"
        )
    header = ("request", "connections", "requests/s", "p50 ms", "p90 ms", "p99 ms", "max ms")
    return Report(
        name=NAME,
        figures={
            "health_per_s": rounded(health_per_s, 0),
            "http_per_s": rounded(of[_HTTP, 1].requests_per_s, 0),
            "grpc_per_s": rounded(of[_GRPC, 1].requests_per_s, 0),
            "http_p50_ms": rounded(of[_HTTP, 1].latency.p50_ms, 2),
            "grpc_p50_ms": rounded(of[_GRPC, 1].latency.p50_ms, 2),
            **{f"overhead_ms_{count}": rounded(overhead, 2) for count, overhead in overheads.items()},
        },
        values={**circumstances(NAME), "rows": [asdict(row) for row in rows], "broken": not_held},
        broken=not_held,
        table=markdown(header, [_cells(row) for row in rows]),
    )


def _cells(row: Row) -> list[str]:
    latency = row.latency
    times = (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms)
    return [row.name, str(row.num_connections), f"{row.requests_per_s:.0f}", *(rounded(one, 2) for one in times)]


def _address(options: argparse.Namespace, target: Target) -> tuple[str, int]:
    if target.process:
        return "127.0.0.1", target.process.http_port
    url = urlsplit(options.http_url)
    return str(url.hostname), url.port or 80


def _request(address: tuple[str, int], line: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: {address[0]}:{address[1]}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class KeptConnection:
    """A connection that takes one request after the other."""

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes]) -> None:
        """Connect; requests are sent in turn."""
        self._requests = requests
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, number: int) -> str:
        """Send a request and read its answer; return its status. OSError if there is none."""
        self._socket.sendall(self._requests[number % len(self._requests)])
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _length(received[: end + 4]):
            if not (content := self._socket.recv(_RECEIVE_BYTES)):
                raise ConnectionError("the server has closed the connection")
            received += content
        return received[9:12].decode("latin-1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _length(head: bytes) -> int:
    found = _LENGTH.search(head)
    return int(found[1]) if found else 0


def _grpc_caller(channel: Any, messages: Sequence[bytes], key: str | None) -> Caller:
    method = channel.unary_unary(Method.TRANSLATE.path)
    metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(number: int) -> str:
        _, done = method.with_call(messages[number % len(messages)], timeout=_TIMEOUT_S, metadata=metadata)
        return str(done.code().name)

    return call


def _round(name: str, callers: Sequence[Caller], seconds: float) -> Iterator[CallRecord]:
    """Let each caller make one call after the other; yield the records."""
    start = threading.Barrier(len(callers))

    def repeat(caller: Caller) -> list[CallRecord]:
        records = list[CallRecord]()
        start.wait()
        until_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < until_s:
            status = caller(len(records))
            record = CallRecord(
                planned_s=began_s,
                sent_s=began_s,
                ended_s=time.monotonic(),
                method=name,
                outcome=Outcome.ANSWERED if status in ("200", "OK") else Outcome.ERROR,
                status=status,
            )
            records.append(record)
        return records

    with ThreadPoolExecutor(len(callers)) as pool:
        for records in pool.map(repeat, callers):
            yield from records
