"""Faults of connections: callers who never read, drop, drip, flood, cancel, or speak no gRPC."""

import itertools
import random
import time
from collections import deque
from contextlib import ExitStack, closing
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamReset
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, PingFrame

from loadtests import wire
from loadtests.stress.callers import Client
from loadtests.stress.chaos import http2
from loadtests.stress.chaos.fault import Limits, Stage, fault
from loadtests.stress.chaos.http2 import RawConnection, grpc_message
from loadtests.stress.chaos.server import HANDSHAKE_TIMEOUT_S
from loadtests.stress.server import poll

_SENTENCE: Final = "The weather is nice today, and the children play in the garden. "
_NUM_SENTENCES: Final = 900
"""Of each document: many times what the server has in work for one, and no more bytes than a peer may send unasked."""

_NUM_STREAMED: Final = 200
_MAX_SHARE_DONE: Final = 0.5
"""Of the documents, how much the server may translate although it is not read."""

_READERS_SLACK_S: Final = 5.0
_SOURCE_TOKENS: Final = "mt_source_tokens_total"
_DOCUMENTS: Final = 'mt_requests_total{{method="TranslateDocument",status="{}"}}'
_OPEN: Final = ('mt_requests_in_flight{method="TranslateDocument"}', "mt_open_streams")
_STREAM_ENDED, _STREAM_LATE = '"event": "stream"', '"status": "DEADLINE_EXCEEDED"'

_MOST_OPEN: Final = 200
"""Connections at a time, far below what the server accepts: others must find room."""

_MAX_PER_S: Final = 1000.0
_FILES: Final = "process_open_fds"
_DRIP_EACH_S: Final = 0.2
_SLOW_TIMEOUT_S: Final = 600.0
_SHARE_SEEN: Final = 0.5
_CLOSING_SLACK_S: Final = 4.0

_KIB: Final = 1024
_METADATA_BYTES: Final = (8 * _KIB, 32 * _KIB, 64 * _KIB, 256 * _KIB, 1024 * _KIB)
_ACCEPTED_METADATA_BYTES: Final = 15 * _KIB
_MANY_HEADERS: Final = 1000
_CALL_S: Final = 30.0
_REPLY_S: Final = 5.0
_CLOSE_S: Final = 10.0
_LARGE_BYTES: Final = 5 * _KIB * _KIB
_COMPRESSED_BYTES: Final = 64 * _KIB * _KIB
_LYING_LENGTH: Final = 2**32 - 1
_RESETS_A_CONNECTION: Final = 100
_ADMITTED_S: Final = 0.02
_CANCELLED: Final = 'mt_requests_total{method="Translate",status="CANCELLED"}'
_SETTLE_S: Final = 10.0
_SETTLE_POLL_S: Final = 0.2
_POLL_S: Final = 0.05


@fault(
    "callers ask for long documents and streams and never read",
    amounts=(6, 32),
    seconds=(2.0, 10.0),
    limits=lambda _: Limits(max_bystander_s=5.0),  # what they ask for is decoded with the same priority
)
def reader_stalls(stage: Stage) -> str:
    """Ask for documents and streams and read nothing until the deadline; the server ends them in bounded memory."""
    late, refused = (_DOCUMENTS.format(status) for status in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"))
    log_before = stage.server.log.stat().st_size
    num_readers, timeout_s = stage.amount, stage.seconds
    languages: dict[str, Any] = {"source_language": "en", "target_language": "de"}
    document = pb.TranslateDocumentRequest(text=_SENTENCE * _NUM_SENTENCES, **languages).SerializeToString()
    requests = b"".join(
        grpc_message(
            pb.TranslateRequest(texts=[_SENTENCE], request_id=f"unread-{number}", **languages).SerializeToString()
        )
        for number in range(_NUM_STREAMED)
    )
    with ExitStack() as stack:
        for number in range(num_readers):
            connection = stack.enter_context(closing(RawConnection(stage.target, window_bytes=0)))
            connection.begin()
            if number % 2 == 0:
                connection.http2.call(wire.TRANSLATE_DOCUMENT, grpc_message(document), timeout_s=timeout_s)
            else:
                connection.http2.call(wire.TRANSLATE_STREAM, requests, timeout_s=timeout_s, ends=False)
            connection.flush()
        time.sleep(timeout_s)
        poll(lambda: any(map(stage.samples, _OPEN)), lambda is_open: not is_open, timeout_s=_READERS_SLACK_S)
    num_late, num_refused = stage.growth(late), stage.growth(refused)
    lines = stage.server.logged_since(log_before).splitlines()  # metrics count the requests of streams, not streams
    num_streams = sum(_STREAM_ENDED in line and _STREAM_LATE in line for line in lines)
    stage.hits.update({"DEADLINE_EXCEEDED": num_late + num_streams, "RESOURCE_EXHAUSTED": num_refused})
    stage.require(
        stage.hits.total() == num_readers,
        f"of {num_readers} callers who never read, {num_late} with documents and {num_streams} with streams ran into "
        f"their deadline, and {num_refused} were rejected",
    )
    asked_tokens = num_readers // 2 * (_NUM_SENTENCES + _NUM_STREAMED) * len(_SENTENCE.split())
    done = stage.growth(_SOURCE_TOKENS) / asked_tokens
    stage.require(done < _MAX_SHARE_DONE, f"{done:.0%} of what was not read was translated")
    return f"mt_requests_total{{DEADLINE_EXCEEDED}}{num_late:+d}" if num_late else ""


@fault(
    "thousands of connections are opened and dropped, with and without a call",
    amounts=(800, 10_000),
    limits=lambda _: Limits(max_bystander_s=8.0, max_file_growth=16),  # one of six makes a call: they are work, too
)
def connections_dropped(stage: Stage) -> str:
    """Open connections at a bounded rate, a couple of hundred at a time, each dropped in one of two ways."""
    calls = []
    for question in stage.questions:
        protocol = http2.Protocol()
        protocol.call(wire.TRANSLATE, grpc_message(question.request))
        calls.append(protocol.data_to_send())
    ways = ((b"",), (http2.PREFACE,), (http2.PREFACE[:10],), (http2.TLS_HELLO,), (http2.HELLO,), calls)
    open_now: deque[RawConnection] = deque()
    most_files = 0
    began_s = time.monotonic()
    try:
        for number, way in zip(range(stage.amount), itertools.cycle(ways)):
            connection = RawConnection(stage.target)
            open_now.append(connection)
            connection.send(way[number // len(ways) % len(way)])
            if len(open_now) >= _MOST_OPEN:
                if number % _MOST_OPEN == 0:
                    most_files = max(most_files, stage.growth(_FILES))
                open_now.popleft().close(with_reset=number % 4 != 0)
            time.sleep(max(0.0, (number + 1) / _MAX_PER_S - (time.monotonic() - began_s)))
        most_files = max(most_files, stage.growth(_FILES))
    finally:
        for connection in open_now:
            connection.close()
    stage.hits["dropped"] += stage.amount
    return f"{_FILES}{most_files:+d}" if most_files > 0 else ""


@fault(
    "hundreds of connections send a byte now and then: prefaces, headers and bodies without an end",
    amounts=(100, 400),
    seconds=(3.0, 20.0),
    limits=lambda _: Limits(max_file_growth=16),
)
def slow_loris(stage: Stage) -> str:
    """Keep hundreds of connections that send a byte now and then; others, new ones too, are served all the time."""
    generator = random.Random(1)
    with ExitStack() as stack:
        slow, silent = list[tuple[RawConnection, deque[int]]](), list[RawConnection]()
        for kind in itertools.islice(itertools.cycle(("preface", "headers", "continuation", "body")), stage.amount):
            connection = stack.enter_context(closing(RawConnection(stage.target)))
            slow.append((connection, deque(_begun(connection, kind, stage.questions[0].request))))
            if kind == "preface":
                silent.append(connection)
        until_s = time.monotonic() + max(stage.seconds, HANDSHAKE_TIMEOUT_S + 1)
        num_files = stage.growth(_FILES)
        while time.monotonic() < until_s:
            for connection, rest in generator.sample(slow, len(slow)):
                if rest and not connection.is_closed:
                    connection.send(bytes([rest.popleft()]))
            status = stage.ask().status
            stage.require(status == "OK", f"a new connection among slow ones was told {status}")
            time.sleep(_DRIP_EACH_S)
        num_ended = sum(connection.wait_until_closed(_CLOSING_SLACK_S) for connection in silent)
    stage.hits["handshake_timeout"] += num_ended
    num_open = len(silent) - num_ended
    stage.require(num_open == 0, f"{num_open} connections that never finished their preface were still open")
    return f"{_FILES}{num_files:+d}" if num_files > _SHARE_SEEN * stage.amount else ""


def _begun(connection: RawConnection, kind: str, request: bytes) -> bytes:
    """Begin as far as that is quick; return what is sent byte by byte, all but its end."""
    if kind == "preface":
        return http2.PREFACE[:-1]
    connection.begin()
    block = Encoder().encode(http2.call_headers(wire.TRANSLATE, timeout_s=_SLOW_TIMEOUT_S))
    headers = HeadersFrame(1, block, flags=["END_HEADERS"]).serialize()
    if kind == "headers":
        return headers[:-1]
    if kind == "continuation":
        connection.send(HeadersFrame(1, block).serialize())
        return ContinuationFrame(1).serialize() * len(block)
    connection.send(headers)
    return DataFrame(1, grpc_message(request), flags=["END_STREAM"]).serialize()[:-1]


@fault("metadata of 8 KiB to 1 MiB, and a thousand headers", amounts=(20, 200), is_counted=False)
def large_metadata(stage: Stage) -> str:
    """Send ever larger metadata, through gRPC and past it: its client does not send what it knows to be too much."""
    with Client(stage.target) as client:
        for number, size in zip(range(stage.amount), itertools.cycle(_METADATA_BYTES)):
            request = stage.questions[number % len(stage.questions)].request
            reply = client.call(wire.Method.TRANSLATE, request, timeout_s=_CALL_S, metadata=(("x-note", "a" * size),))
            expected = "OK" if size <= _ACCEPTED_METADATA_BYTES else "RESOURCE_EXHAUSTED"
            stage.require(reply.status == expected, f"{size} bytes of metadata: {reply.status}, not {expected}")
            if expected != "OK":
                stage.hits[reply.status] += 1
    for size in _METADATA_BYTES:
        _send_headers(stage, [("x-note", "a" * size)], size)
    _send_headers(stage, [(f"x-note-{number}", "a" * 100) for number in range(_MANY_HEADERS)], 100 * _MANY_HEADERS)
    with closing(RawConnection(stage.target)) as connection:  # limits bind a client that acknowledges them, so it must
        connection.send(http2.HELLO)
        is_closed = connection.wait_until_closed(HANDSHAKE_TIMEOUT_S + _CLOSE_S)
    stage.require(is_closed, "the server goes on with a client that never acknowledged its settings")
    stage.hits["never_acknowledged_closed"] += is_closed
    return ""


def _send_headers(stage: Stage, extra: list[tuple[str, str]], size: int) -> None:
    """Send headers as they are; the server must reject the call, or the connection, and no other one."""
    with closing(RawConnection(stage.target)) as connection:
        connection.begin()
        connection.http2.call(wire.TRANSLATE, grpc_message(stage.questions[0].request), timeout_s=_CALL_S, extra=extra)
        connection.flush()
        reply = connection.reply(_REPLY_S)
    if size <= _ACCEPTED_METADATA_BYTES:
        stage.require(DataReceived in reply, f"a call with {size} bytes of raw headers, as accepted, got no answer")
        return
    rejected = connection.is_closed or bool(reply & {ResponseReceived, StreamReset, ConnectionTerminated})
    stage.require(rejected, f"{size} bytes of raw headers got no answer")
    stage.require(DataReceived not in reply, f"a call with {size} bytes of raw headers was answered")
    stage.hits["raw_rejected"] += rejected


@fault("requests of 5 MiB, of 64 MiB compressed, and with lengths that lie", amounts=(4, 40), is_counted=False)
def large_messages(stage: Stage) -> str:
    """Send messages larger than the server accepts: plainly, compressed, and with a length that lies."""
    plain, unpacked = (
        pb.TranslateRequest(texts=["\0" * size]).SerializeToString() for size in (_LARGE_BYTES, _COMPRESSED_BYTES)
    )
    ways = ((plain, grpc.Compression.NoCompression), (unpacked, grpc.Compression.Gzip))
    with Client(stage.target) as client:
        for request, compression in itertools.islice(itertools.cycle(ways), stage.amount):
            answer = client.call(wire.Method.TRANSLATE, request, timeout_s=_CALL_S, compression=compression)
            stage.hits[answer.status] += 1
    told = set(stage.hits)
    stage.require(told == {"RESOURCE_EXHAUSTED"}, f"messages that are too large were told {told}")
    for _ in range(stage.amount):
        with closing(RawConnection(stage.target)) as connection:
            connection.begin()
            connection.http2.call(wire.TRANSLATE, grpc_message(b"x", length=_LYING_LENGTH), ends=False)
            connection.flush()
            reply = connection.reply(_REPLY_S)
            rejected = bool(reply & {ResponseReceived, StreamReset}) or connection.is_closed
            stage.require(rejected, "a message that says it has 4 GiB got no answer")
            stage.hits["lying_length_rejected"] += rejected
    return ""


@fault("thousands of pings without a pause", amounts=(2000, 20_000), is_counted=False)
def ping_flood(stage: Stage) -> str:
    """Ping as fast as can be; the server closes that connection, and no other."""
    with closing(RawConnection(stage.target)) as connection:
        connection.begin()
        ping = PingFrame(opaque_data=bytes(8)).serialize()
        for _ in range(stage.amount // 100):
            if not connection.send(100 * ping):
                break
        stage.hits.update(connection.goaways(_REPLY_S))
        is_closed = connection.wait_until_closed(_CLOSE_S)
    stage.require(is_closed, f"the server still serves a client that pinged {stage.amount} times")
    return ""


@fault(
    "thousands of calls, each cancelled as soon as it is sent (CVE-2023-44487)",
    amounts=(800, 10_000),
    limits=lambda _: Limits(max_bystander_s=4.0),
)
def rapid_reset(stage: Stage) -> str:
    """Begin calls and cancel them at once, thousands of them (CVE-2023-44487); those that wait are still answered."""
    request = grpc_message(stage.questions[0].request)
    for first, wait_s in zip(range(0, stage.amount, _RESETS_A_CONNECTION), itertools.cycle((0.0, _ADMITTED_S))):
        with closing(RawConnection(stage.target)) as connection:
            connection.begin()
            streams = []
            for _ in range(min(_RESETS_A_CONNECTION, stage.amount - first)):
                streams.append(connection.http2.call(wire.TRANSLATE, request, timeout_s=_CALL_S))
                connection.flush()
            time.sleep(wait_s)  # some are cancelled before they are seen, others in the queue
            for stream in streams:
                connection.http2.reset_stream(stream, ErrorCodes.CANCEL)
                connection.flush()
            stage.hits.update(connection.goaways(_POLL_S))
    counts = [-1, stage.growth(_CANCELLED)]

    def is_settled() -> bool:
        time.sleep(_SETTLE_POLL_S)
        counts.append(stage.growth(_CANCELLED))
        return counts[-1] == counts[-2]

    poll(is_settled, bool, timeout_s=_SETTLE_S)
    stage.hits["cancelled"] += stage.amount
    return f"mt_requests_total{{CANCELLED}}{counts[-1]:+d}" if counts[-1] else ""


@fault("other protocols, noise and forbidden frames", amounts=(160, 1300), is_counted=False)
def garbage(stage: Stage) -> str:
    """Send what is no gRPC; the server closes the connection or answers, and goes on."""
    for number, kind in zip(range(stage.amount), itertools.cycle(http2.GARBAGE)):
        with closing(RawConnection(stage.target)) as connection:
            connection.send(http2.garbage(kind, number))
            goaways = connection.goaways(_POLL_S)
            stage.hits.update(goaways or (["closed"] if connection.is_closed else ["ignored"]))
    return ""


FAULTS: Final = (
    reader_stalls, connections_dropped, slow_loris, large_metadata, large_messages, ping_flood, rapid_reset, garbage,
)  # fmt: skip
