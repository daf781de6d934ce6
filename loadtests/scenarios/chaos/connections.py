"""Faults of connections: clients that do not read, drop, drip, flood, cancel, or do not speak gRPC."""

import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import grpc
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile import http2
from loadtests.hostile.http2 import RawConnection, flood_with_resets, grpc_message
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
from loadtests.scenarios.control_traffic import connect
from loadtests.scenarios.stress_server import poll

_SENTENCE: Final = "The weather is nice today, and the children play in the garden. "
_NUM_SENTENCES: Final = 900  # far more than the server processes together; fits into the initial flow-control window
_NUM_STREAMED: Final = 200
_MAX_OPEN: Final = 200  # connections, far below the limit of the server
_METADATA_BYTES: Final = tuple(1024 * kib for kib in (8, 32, 64, 256, 1024))
_ACCEPTED_METADATA_BYTES: Final = 15 * 1024
_MESSAGE_BYTES: Final = ((5 * 1024**2, grpc.Compression.NoCompression), (64 * 1024**2, grpc.Compression.Gzip))
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_RESETS_PER_CONNECTION: Final = 100
_REPLY_S: Final = 5.0
_FLOODED: Final = {"slowest_s": 5.0, "health_s": 5.0, "rss_growth_mb": 160.0}


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


@fault(amounts=(20, 200), expected={"RESOURCE_EXHAUSTED", "raw_rejected", "never_acknowledged_closed"})
def large_metadata(run: FaultRun) -> None:
    """Metadata of 8 KiB to 1 MiB and a thousand headers, also without the limits of gRPC's client."""
    with connect(run.address) as client:
        for number, size in zip(range(run.amount), itertools.cycle(_METADATA_BYTES)):
            request = run.known_requests[number % len(run.known_requests)].request
            reply = client.call(Method.TRANSLATE, request, metadata=(("x-note", "a" * size),))
            if size <= _ACCEPTED_METADATA_BYTES:
                run.require_ok(f"{size} bytes of metadata", [reply])
            else:
                run.status_counts[reply.status] += 1
    many = [(f"x-note-{number}", "a" * 100) for number in range(1000)]
    for extra in (*([("x-note", "a" * size)] for size in _METADATA_BYTES), many):
        result = _raw_call(run, grpc_message(run.known_requests[0].request), extra=extra)
        if sum(len(value) for _, value in extra) > _ACCEPTED_METADATA_BYTES:
            run.status_counts[f"raw_{result}"] += 1
        else:
            run.require(result == "answered", f"a call with raw headers of an accepted size was {result}")
    with closing(RawConnection(run.address)) as connection:  # limits bind only clients that acknowledge the settings
        connection.send(http2.HELLO)
        is_closed = connection.wait_until_closed(HANDSHAKE_TIMEOUT_S + _REPLY_S)
    run.status_counts["never_acknowledged_closed" if is_closed else "never_acknowledged_served"] += 1


def _raw_call(run: FaultRun, content: bytes, **options: Any) -> str:
    """Make a call on a new connection; return whether it was answered, ignored or rejected."""
    with closing(RawConnection(run.address)) as connection:
        connection.begin().call(Method.TRANSLATE.path, content, **options)
        result = connection.reply(_REPLY_S)
    return result if result in {"answered", "ignored"} else "rejected"


@fault(amounts=(4, 40), expected={"RESOURCE_EXHAUSTED", "lying_length_rejected"})
def large_messages(run: FaultRun) -> None:
    """Requests of 5 MiB, of 64 MiB compressed, and with false lengths."""
    with connect(run.address) as client:
        for size, compression in itertools.islice(itertools.cycle(_MESSAGE_BYTES), run.amount):
            request = pb.TranslateRequest(texts=["\0" * size]).SerializeToString()
            reply = client.call(Method.TRANSLATE, request, compression=compression)
            run.status_counts[reply.status] += 1
    for _ in range(run.amount):
        run.status_counts[f"lying_length_{_raw_call(run, grpc_message(b'x', length=2**32 - 1), ends=False)}"] += 1


@fault(amounts=(2000, 20_000))
def ping_flood(run: FaultRun) -> None:
    """Thousands of pings without a pause; the server closes that connection only."""
    connection = run.connect().begin()
    for _ in range(100):
        connection.ping(bytes(8))
    pings = connection.data_to_send()
    for _ in range(run.amount // 100):
        connection.send(pings)
    run.status_counts[connection.reply(_REPLY_S)] += 1
    is_closed = connection.wait_until_closed(_REPLY_S)
    run.require(is_closed, f"the connection is still open after {run.amount} pings")


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


@fault(amounts=(13, 100))
def garbage(run: FaultRun) -> None:
    """Other protocols, noise and forbidden frames; the server closes the connection or responds."""
    for number in range(run.amount):
        for content in http2.garbage(number).values():
            with closing(RawConnection(run.address)) as connection:
                connection.send(content)
                run.status_counts[connection.reply(0.05)] += 1


@fault(seconds=(3.0, 15.0), metric=requests_metric("Translate", "CANCELLED"), limits=_FLOODED)
def reset_flood(run: FaultRun) -> None:
    """Calls are begun and reset on many connections at the maximum rate; no other call fails."""
    path = Method.TRANSLATE.path
    run.status_counts["reset"] += flood_with_resets(run.address, path, num_connections=16, seconds=run.seconds)


@fault(amounts=(100, 100), metric='dragoman_limit_rejections_total{limit="max_watchers"}')
def silent_watchers(run: FaultRun) -> None:
    """Clients watch the health service and do not read; the server limits them."""
    for _ in range(run.amount):
        run.connect(window_bytes=0).begin().call(_WATCH, grpc_message(b""), ends=True)
        run.status_counts["watching"] += 1


@fault(
    amounts=(100, 400),
    seconds=(3.0, 11.0),
    metric='dragoman_limit_rejections_total{limit="message_timeout_s"}',
    limits=_FLOODED,
)
def silent_connections(run: FaultRun) -> None:
    """Calls of headers only, or without the last byte of the message; other calls of the same host are served."""
    request = grpc_message(run.known_requests[0].request)[:-1]
    for number in range(run.amount):
        if number % 50 == 0:
            connection = run.connect().begin()
        connection.call(Method.TRANSLATE.path, request if number % 2 else b"", ends=False)
        run.status_counts["silent"] += 1
    time.sleep(run.seconds)
