"""Faults of connections: clients that do not read, drop, drip, cancel or never end their headers."""

import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.generator.metrics import footprint
from loadtests.hostile import http2
from loadtests.hostile.http2 import RawConnection, grpc_message
from loadtests.scenarios.chaos.fault import (
    HANDSHAKE_TIMEOUT_S,
    LATE,
    OPEN_FILES,
    STREAM_IDLE_TIMEOUT_S,
    FaultRun,
    fault,
    lasting,
    requests_metric,
)
from loadtests.scenarios.stress_server import poll

_SENTENCE: Final = "The weather is nice today, and the children play in the garden. "
_NUM_SENTENCES: Final = 900  # far more than the server processes together; fits into the initial flow-control window
_NUM_STREAMED: Final = 200
_MAX_OPEN: Final = 200  # connections, far below the limit of the server
_RESETS_PER_CONNECTION: Final = 100
_REPLY_S: Final = 5.0
_HEADER_FIELD: Final = b"\x00\x01a\x01b"  # a literal that is not indexed
_HEADER_BYTES_PER_S: Final = 17_000_000
_MAX_HEADERS_MB: Final = 1200.0  # it would be more than 2 GB without `grpc.settings_timeout_s`


@fault(
    amounts=(6, 32),
    expected=LATE,
    metric=requests_metric("TranslateDocument", "DEADLINE_EXCEEDED"),
    limits={"slowest_s": 5.0},  # the documents are decoded with the same priority
)
def reader_stalls(run: FaultRun) -> None:
    """Clients request long documents and streams and do not read; the server ends them in bounded memory."""
    languages: dict[str, Any] = {"source_language": "en", "target_language": "de"}
    document = pb.TranslateDocumentRequest(text=_SENTENCE * _NUM_SENTENCES, **languages)
    texts = (
        pb.TranslateRequest(texts=[_SENTENCE], request_id=f"unread-{number}", **languages)
        for number in range(_NUM_STREAMED)
    )
    stream = b"".join(grpc_message(text.SerializeToString()) for text in texts)
    for _ in range(run.amount // 2):
        reader = run.connect(window_bytes=0).begin()
        reader.call(Method.TRANSLATE_DOCUMENT.path, grpc_message(document.SerializeToString()))
        reader = run.connect(window_bytes=0).begin()
        reader.call(Method.TRANSLATE_STREAM.path, stream, ends=False)
    time.sleep(STREAM_IDLE_TIMEOUT_S)
    unread = ('dragoman_requests_in_flight{method="TranslateDocument"}', "dragoman_open_streams")
    poll(lambda: any(map(run.growth_of, unread)), lambda is_open: not is_open, timeout_s=_REPLY_S)
    run.status_counts.update({status: run.growth_of(requests_metric("TranslateDocument", status)) for status in LATE})
    num_streams = run.amount // 2  # metrics count the requests of streams, not streams; log lines are delayed
    run.status_counts["DEADLINE_EXCEEDED"] += poll(
        lambda: sum(map(_is_late_stream, run.logged().splitlines())),
        lambda num_late: num_late >= num_streams,
        timeout_s=_REPLY_S,
    )
    num_ended = run.status_counts.total()
    run.require(num_ended == run.amount, f"of {run.amount} clients that do not read, {num_ended} got a status")
    requested_tokens = run.amount // 2 * (_NUM_SENTENCES + _NUM_STREAMED) * len(_SENTENCE.split())
    share = run.growth_of("dragoman_source_tokens_total") / requested_tokens
    run.require(share < 0.5, f"{share:.0%} of the unread text was translated")


def _is_late_stream(log_line: str) -> bool:
    return '"event": "stream"' in log_line and '"status": "DEADLINE_EXCEEDED"' in log_line


# every sixth connection makes a call, so control traffic waits for that work
@fault(amounts=(800, 10_000), metric=OPEN_FILES, limits={"slowest_s": 8.0, "files": 16})
def connections_dropped(run: FaultRun) -> None:
    """Thousands of connections are opened and dropped, with and without a call, some hundred at a time."""
    begins = (b"", http2.PREFACE, http2.PREFACE[:10], http2.TLS_HELLO, http2.HELLO, None)
    open_now: deque[RawConnection] = deque()
    began_s = time.monotonic()
    for number, begin in zip(range(run.amount), itertools.cycle(begins)):
        open_now.append(RawConnection(run.address))
        if begin is None:
            request = run.known_requests[number % len(run.known_requests)].request
            open_now[-1].call(Method.TRANSLATE.path, grpc_message(request))
        else:
            open_now[-1].send(begin)
        if len(open_now) == _MAX_OPEN:
            if number % _MAX_OPEN == 0:
                run.record_growth()
            open_now.popleft().close(with_reset=number % 4 != 0)
        time.sleep(max(0.0, began_s + number / 1000 - time.monotonic()))  # at most a thousand per second
    run.record_growth()
    for connection in open_now:
        connection.close()
    run.status_counts["dropped"] += run.amount


@fault(amounts=(100, 400), seconds=(3.0, 20.0), expected={"handshake_timeout"}, metric=OPEN_FILES, limits={"files": 16})
def slow_loris(run: FaultRun) -> None:
    """Hundreds of connections send prefaces, headers and bodies byte by byte without an end."""
    block = Encoder().encode(http2.call_headers(Method.TRANSLATE.path, timeout_s=600.0))
    headers = HeadersFrame(1, block, flags=["END_HEADERS"]).serialize()
    body = DataFrame(1, grpc_message(run.known_requests[0].request), flags=["END_STREAM"]).serialize()
    ways = (
        (b"", headers[:-1]),
        (HeadersFrame(1, block).serialize(), ContinuationFrame(1).serialize() * len(block)),
        (headers, body[:-1]),
    )
    silent = [run.connect() for _ in range(run.amount // 4)]
    slow = [(connection, http2.PREFACE[:-1]) for connection in silent]
    for begin, rest in itertools.islice(itertools.cycle(ways), run.amount - len(silent)):
        slow.append((run.connect().begin(), rest))
        slow[-1][0].send(begin)
    run.record_growth()
    drip(run, slow, max(run.seconds, HANDSHAKE_TIMEOUT_S + 1))
    run.require(run.num_seen > run.amount / 2, f"only {run.num_seen} more files are open")
    run.status_counts["handshake_timeout"] += sum(connection.wait_until_closed(4.0) for connection in silent)
    num_open = len(silent) - run.status_counts["handshake_timeout"]
    run.require(num_open == 0, f"{num_open} connections with an unfinished preface are still open")


def drip(run: FaultRun, slow: Sequence[tuple[RawConnection, bytes]], seconds: float) -> None:
    """Send one byte at a time on each connection; new connections must be served meanwhile."""
    generator = random.Random(1)
    for position in lasting(seconds):
        for connection, content in generator.sample(slow, len(slow)):
            connection.send(content[position : position + 1])
        run.require_ok("new connections among slow ones", [run.ask()])
        time.sleep(0.2)


@fault(amounts=(800, 10_000), metric=requests_metric("Translate", "CANCELLED"), limits={"slowest_s": 4.0})
def rapid_reset(run: FaultRun) -> None:
    """Thousands of calls, each cancelled as soon as it is sent (CVE-2023-44487)."""
    request = grpc_message(run.known_requests[0].request)
    for number in range(run.amount // _RESETS_PER_CONNECTION):
        with closing(RawConnection(run.address)) as connection:
            connection.begin()
            streams = [connection.call(Method.TRANSLATE.path, request) for _ in range(_RESETS_PER_CONNECTION)]
            time.sleep(0.02 * (number % 2))  # cancel some before they are read, others in the queue
            for stream in streams:
                connection.reset_stream(stream, ErrorCodes.CANCEL)
                connection.flush()
            run.status_counts[f"connection_{connection.reply(0.05)}"] += 1
            run.status_counts["cancelled"] += len(streams)


@fault(
    amounts=(100, 100),
    seconds=(4.0, 12.0),
    metric=OPEN_FILES,
    limits={"slowest_s": 5.0, "health_s": 5.0, "rss_growth_mb": _MAX_HEADERS_MB, "files": 16},
)
def unfinished_headers(run: FaultRun) -> None:
    """Endless headers on connections that never acknowledge the settings; memory is bounded."""
    begin = http2.HELLO + HeadersFrame(1, Encoder().encode(http2.call_headers("/"))).serialize()
    frames = ContinuationFrame(1, _HEADER_FIELD * 3200).serialize() * 4
    connections = [run.connect() for _ in range(run.amount)]
    for connection in connections:
        connection.send(begin)
    began_s, idle_mb, peak_mb = time.monotonic(), footprint(run.server.process.pid).rss_mb, 0.0
    for number in lasting(run.seconds):
        position = number % run.amount
        if connections[position].wait_until_closed(0.0005):
            connections[position] = run.connect()
            connections[position].send(begin)
        connections[position].send(frames)
        if number % 20 == 0:
            peak_mb = max(peak_mb, footprint(run.server.process.pid).rss_mb)
            run.record_growth()
        time.sleep(max(0.0, began_s + number * len(frames) / _HEADER_BYTES_PER_S - time.monotonic()))
        run.status_counts["sent"] += 1
    growth_mb = peak_mb - idle_mb
    run.require(growth_mb <= _MAX_HEADERS_MB, f"the server needed {growth_mb:.0f} MB more during the attack")
