"""`transports`: HTTP and gRPC on persistent connections, latency and requests per second."""

import argparse
import itertools
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from google.protobuf import json_format

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.flags import within
from loadtests.generator.records import CallRecord, Summary, summarize, write_records
from loadtests.generator.server import Target
from loadtests.generator.workload import Workload
from loadtests.report.report import Report, environment, markdown, rounded

NAME: Final = "transports"
DESCRIPTION: Final = """\
Sends requests on persistent connections to one server: GET /healthz, POST /v1/translate, and Translate over gRPC with
the same texts. Each connection sends its next request after the response to the last. The three alternate every second,
first on one connection, then on four, so that other work on the machine affects all of them.

The clients differ: a plain socket for HTTP, the gRPC library for Python, which takes some tenths of a millisecond per
call. Without --target it starts a server on free local ports.

OUTPUT contains transports.json, calls.jsonl (every request), and the log of a started server.

exit codes: 0 every request was answered; 1 a request failed, a limit was exceeded, or the server failed; 2 invalid
usage"""

WORKLOAD: Final = Workload(options='{"beamSize": 1}')

_NUM_CONNECTIONS: Final = (1, 4)
_NUM_ROUNDS: Final = {"full": 8, "short": 2}
_ROUND_S: Final = {"full": 1.0, "short": 0.5}
_NUM_REQUESTS: Final = 64
_TIMEOUT_S: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEALTH: Final = "GET /healthz"
_HTTP: Final = "POST /v1/translate"
_GRPC: Final = "gRPC Translate"

_PERCENTILES: Final = ("p50", "p90", "p99", "max")

Caller = Callable[[int], str]  # makes the call of a number, returns its status


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `transports`."""
    add, limit = parser.add_argument, within(0.001, 1e6)
    add("--http-url", metavar="URL", help="HTTP API of --target, such as http://localhost:9464")
    add("--max-overhead-ms", type=limit, metavar="MS", help="limit of the median of HTTP minus gRPC (none)")
    add("--min-health-per-s", type=limit, metavar="N", help="minimum rate of /healthz on one connection (none)")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return the measurement; raises ValueError or OSError for invalid flags or texts."""
    if options.target and not options.http_url:
        raise ValueError("--target requires --http-url")
    if options.http_url and urlsplit(options.http_url).scheme != "http":
        raise ValueError(f"--http-url {options.http_url}: expected http://HOST:PORT")
    calls = workload.calls(options.seed)
    messages = [calls.call(number, method=Method.TRANSLATE.value).messages[0] for number in range(_NUM_REQUESTS)]
    return partial(_measure, options, messages)


def _measure(options: argparse.Namespace, messages: Sequence[bytes], target: Target) -> Report:
    url = urlsplit(options.http_url or "")
    address = ("127.0.0.1", target.process.http_port) if target.process else (str(url.hostname), url.port or 80)
    bodies = [json_format.MessageToJson(pb.TranslateRequest.FromString(one)).encode() for one in messages]
    authorization = [f"Authorization: Bearer {target.key}"] if target.key else []
    posts = [_request(address, _HTTP, body, *authorization) for body in bodies]
    connectors: dict[str, Callable[[ExitStack], Caller]] = {
        _HEALTH: lambda stack: _http_caller(stack, address, [_request(address, _HEALTH)]),
        _HTTP: lambda stack: _http_caller(stack, address, posts),
        _GRPC: lambda stack: _grpc_caller(stack.enter_context(target.channel()), messages, target.key),
    }
    records: dict[tuple[str, int], list[CallRecord]] = {}
    with ExitStack() as stack:
        callers = {name: [connect(stack) for _ in range(max(_NUM_CONNECTIONS))] for name, connect in connectors.items()}
        for name, connected in callers.items():  # warm up
            list(_round(name, connected, 0.3))
        rounds = range(_NUM_ROUNDS[options.mode])
        for count, _, (name, connected) in itertools.product(_NUM_CONNECTIONS, rounds, callers.items()):
            calls = _round(name, connected[:count], _ROUND_S[options.mode])
            records.setdefault((name, count), []).extend(calls)
    write_records(options.output / "calls.jsonl", [record for calls in records.values() for record in calls])
    seconds = _ROUND_S[options.mode] * len(rounds)
    summaries = {cell: summarize(calls, duration_s=seconds) for cell, calls in records.items()}
    return report_of(summaries, options, target.stop())


def report_of(
    summaries: Mapping[tuple[str, int], Summary], options: argparse.Namespace, broken: Sequence[str] = ()
) -> Report:
    """Check that every request was answered, and the limits of the flags."""
    rows, violations = [], list(broken)
    for (name, count), summary in summaries.items():
        if summary.answered < summary.offered:
            violations.append(f"{name} on {count}: {dict(summary.statuses)}")
        times = [rounded(getattr(summary.latency, f"{figure}_ms", None), 2) for figure in _PERCENTILES]
        rows.append([name, str(count), f"{summary.offered_per_s:.0f}", *times])
    p50_ms = {cell: summary.latency.p50_ms if summary.latency else math.nan for cell, summary in summaries.items()}
    per_s = {name: summaries[name, 1].offered_per_s for name in (_HEALTH, _HTTP, _GRPC)}
    overheads_ms = {count: p50_ms[_HTTP, count] - p50_ms[_GRPC, count] for count in _NUM_CONNECTIONS}
    if options.max_overhead_ms is not None and not overheads_ms[1] <= options.max_overhead_ms:
        violations.append(f"overhead of HTTP is {overheads_ms[1]:.2f} ms, limit {options.max_overhead_ms:g}")
    if options.min_health_per_s is not None and per_s[_HEALTH] < options.min_health_per_s:
        violations.append(f"/healthz: {per_s[_HEALTH]:.0f} requests/s, minimum {options.min_health_per_s:g}")
    cells = [{"name": name, "num_connections": count, **asdict(one)} for (name, count), one in summaries.items()]
    return Report(
        name=NAME,
        figures={
            "health_per_s": rounded(per_s[_HEALTH], 0),
            "http_per_s": rounded(per_s[_HTTP], 0),
            "grpc_per_s": rounded(per_s[_GRPC], 0),
            "http_p50_ms": rounded(p50_ms[_HTTP, 1], 2),
            "grpc_p50_ms": rounded(p50_ms[_GRPC, 1], 2),
            **{f"overhead_ms_{count}": rounded(overhead_ms, 2) for count, overhead_ms in overheads_ms.items()},
        },
        values={**environment(NAME), "rows": cells, "broken": violations},
        broken=violations,
        table=markdown(("request", "connections", "requests/s", *(f"{name} ms" for name in _PERCENTILES)), rows),
    )


def _request(address: tuple[str, int], line: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: {address[0]}:{address[1]}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _http_caller(stack: ExitStack, address: tuple[str, int], requests: Sequence[bytes]) -> Caller:
    """Return a caller on its own connection; it raises OSError without a response."""
    connection = stack.enter_context(socket.create_connection(address, timeout=_TIMEOUT_S))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(number: int) -> str:
        connection.sendall(requests[number % len(requests)])
        received, size = b"", -1
        while size < 0 or len(received) < size:
            if not (content := connection.recv(65_536)):
                raise ConnectionError("connection closed by the server")
            received += content
            if size < 0 and (end := received.find(b"\r\n\r\n") + 4) > 3:
                length = _LENGTH.search(received[:end])
                size = end + (int(length[1]) if length else 0)
        return received[9:12].decode("latin-1")

    return call


def _grpc_caller(channel: Any, messages: Sequence[bytes], key: str | None) -> Caller:
    method = channel.unary_unary(Method.TRANSLATE.path)
    metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(number: int) -> str:
        _, done = method.with_call(messages[number % len(messages)], timeout=_TIMEOUT_S, metadata=metadata)
        return str(done.code().name)

    return call


def _round(name: str, callers: Sequence[Caller], seconds: float) -> Iterator[CallRecord]:
    """Let each caller make one call after the other; yield the records of all."""
    start = threading.Barrier(len(callers))

    def repeat(caller: Caller) -> list[CallRecord]:
        records = list[CallRecord]()
        start.wait()
        until_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < until_s:
            status = caller(len(records))
            outcome, ended_s = Outcome.ANSWERED if status in ("200", "OK") else Outcome.ERROR, time.monotonic()
            times: dict[str, Any] = {"planned_s": began_s, "sent_s": began_s, "ended_s": ended_s}
            records.append(CallRecord(**times, method=name, outcome=outcome, status=status))
        return records

    with ThreadPoolExecutor(len(callers)) as pool:
        for records in pool.map(repeat, callers):
            yield from records
