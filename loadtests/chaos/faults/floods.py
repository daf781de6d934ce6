"""More of something than a server can have wanted: metadata, bytes, pings, cancelled calls, noise."""

import itertools
import random
import struct
import time
from collections.abc import Sequence
from typing import Final

import grpc

from loadtests import wire
from loadtests.chaos import garbage, http2
from loadtests.chaos.calls import PATIENCE_S, Client
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.limits import Limits
from loadtests.chaos.raw_connection import RawConnection
from loadtests.chaos.venue import HANDSHAKE_TIMEOUT_S

_KIB: Final = 1024
_METADATA_BYTES: Final = (8 * _KIB, 32 * _KIB, 64 * _KIB, 256 * _KIB, 1024 * _KIB)
_TAKEN_METADATA_BYTES: Final = 15 * _KIB
"""What fits what the server takes by default."""

_MANY_HEADERS: Final = 1000
_REPLY_S: Final = 5.0
_CLOSE_S: Final = 10.0
_LARGE_BYTES: Final = 5 * _KIB * _KIB
_COMPRESSED_BYTES: Final = 64 * _KIB * _KIB
_LYING_LENGTH: Final = 2**32 - 1
_RESETS_A_CONNECTION: Final = 100
_ADMITTED_S: Final = 0.02
_CANCELLED: Final = 'mt_requests_total{method="Translate",status="CANCELLED"}'
_SETTLE_S: Final = 10.0
_POLL_S: Final = 0.05


def _send_metadata(stage: Stage) -> str:
    """Send ever larger metadata, through gRPC and past it: its client keeps back what it knows to be too much."""
    with Client(stage.target) as client:
        for number, size in zip(range(stage.scale.num_metadata), itertools.cycle(_METADATA_BYTES)):
            request = stage.questions[number % len(stage.questions)].request
            reply = client.call(
                wire.Method.TRANSLATE, request, timeout_s=PATIENCE_S, metadata=(("x-note", "a" * size),)
            )
            expected = "OK" if size <= _TAKEN_METADATA_BYTES else "RESOURCE_EXHAUSTED"
            stage.require(reply.status == expected, f"{size} bytes of metadata: {reply.status}, not {expected}")
            if expected != "OK":
                stage.hits[reply.status] += 1
    for size in _METADATA_BYTES:
        _send_headers(stage, [("x-note", "a" * size)], size)
    _send_headers(stage, [(f"x-note-{number}", "a" * 100) for number in range(_MANY_HEADERS)], 100 * _MANY_HEADERS)
    _never_agree(stage)
    return ""


def _send_headers(stage: Stage, extra: Sequence[tuple[str, str]], size: int) -> None:
    """Send headers as they are; the server must refuse the call, or the connection, and no other one."""
    with RawConnection(stage.target) as connection:
        connection.begin()
        block = http2.grpc_headers(wire.Method.TRANSLATE.path, timeout_s=PATIENCE_S, extra=extra)
        connection.send(http2.headers_frames(block, stream=1))
        connection.send(http2.data_frames(http2.grpc_message(stage.questions[0].request), stream=1))
        kinds = _kinds_of_reply(connection)
        is_closed = connection.is_closed
    if size <= _TAKEN_METADATA_BYTES:
        stage.require(
            http2.DATA in kinds, f"a call with {size} bytes of raw headers, which may have them, got no answer"
        )
        return
    refused = is_closed or bool(kinds & {http2.HEADERS, http2.RST_STREAM, http2.GOAWAY})
    stage.require(refused, f"{size} bytes of raw headers got no answer")
    stage.require(http2.DATA not in kinds, f"a call with {size} bytes of raw headers was answered")
    stage.hits["raw_refused"] += refused


def _kinds_of_reply(connection: RawConnection) -> set[int]:
    """Return the kinds of the frames that answer the first call, up to its end or that of the connection."""
    kinds = set()
    for frame in connection.frames(_REPLY_S):
        if frame.stream == 1 or frame.kind == http2.GOAWAY:
            kinds.add(frame.kind)
            if frame.kind in {http2.RST_STREAM, http2.GOAWAY} or frame.ends_stream:
                break
    return kinds


def _never_agree(stage: Stage) -> None:
    """Say hello without agreeing to the server's settings: until then its limits do not bind, so it must not last."""
    with RawConnection(stage.target) as connection:
        connection.send(http2.PREFACE + http2.settings())
        is_closed = connection.wait_until_closed(HANDSHAKE_TIMEOUT_S + _CLOSE_S)
    stage.require(is_closed, "the server goes on with a client that never agreed to its settings")
    stage.hits["never_agreed_closed"] += is_closed


def _send_large(stage: Stage) -> str:
    """Send messages larger than the server takes: plainly, compressed, and with a length that lies."""
    request = b"\x0a" + _varint(_LARGE_BYTES) + bytes(_LARGE_BYTES)
    compressed = b"\x0a" + _varint(_COMPRESSED_BYTES) + bytes(_COMPRESSED_BYTES)
    with Client(stage.target) as client:
        for number in range(stage.scale.num_large):
            is_compressed = number % 2 == 1
            reply = client.call(
                wire.Method.TRANSLATE,
                compressed if is_compressed else request,
                timeout_s=PATIENCE_S,
                compression=grpc.Compression.Gzip if is_compressed else grpc.Compression.NoCompression,
            )
            stage.hits[reply.status] += 1
    stage.require(
        set(stage.hits) == {"RESOURCE_EXHAUSTED"}, f"messages that are too large were told {dict(stage.hits)}"
    )
    for _ in range(stage.scale.num_large):
        with RawConnection(stage.target) as connection:
            connection.begin()
            connection.send(http2.headers_frames(http2.grpc_headers(wire.Method.TRANSLATE.path), stream=1))
            connection.send(http2.data_frames(http2.grpc_message(b"x", length=_LYING_LENGTH), stream=1, flags=0))
            kinds = _kinds_of_reply(connection)
            refused = bool(kinds & {http2.HEADERS, http2.RST_STREAM}) or connection.is_closed
            stage.require(refused, "a message that says it has 4 GiB got no answer")
            stage.hits["lying_length_refused"] += refused
    return ""


def _ping(stage: Stage) -> str:
    """Ping as fast as can be; the server hangs up on whoever does that, and on nobody else."""
    with RawConnection(stage.target) as connection:
        connection.begin()
        ping = http2.frame(http2.PING, bytes(8))
        for _ in range(stage.scale.num_pings // 100):
            if not connection.send(100 * ping):
                break
        errors = [frame.error for frame in connection.frames(_REPLY_S) if frame.kind == http2.GOAWAY]
        is_closed = connection.wait_until_closed(_CLOSE_S)
    stage.hits.update(errors)
    stage.require(is_closed, f"the server still listens to a client that pinged {stage.scale.num_pings} times")
    return ""


def _reset(stage: Stage) -> str:
    """Begin calls and cancel them at once, thousands of them (CVE-2023-44487); whoever waits is still answered."""
    cancelled_before = stage.samples(_CANCELLED)
    block = http2.grpc_headers(wire.Method.TRANSLATE.path, timeout_s=PATIENCE_S)
    message = http2.grpc_message(stage.questions[0].request)
    reset = struct.pack(">I", http2.CANCEL)
    num_sent = 0
    for wait_s in itertools.cycle((0.0, _ADMITTED_S)):
        num_streams = min(_RESETS_A_CONNECTION, stage.scale.num_resets - num_sent)
        if not num_streams:
            break
        num_sent += num_streams
        streams = [2 * number + 1 for number in range(num_streams)]
        with RawConnection(stage.target) as connection:
            connection.begin()
            for stream in streams:
                connection.send(http2.headers_frames(block, stream=stream) + http2.data_frames(message, stream=stream))
            time.sleep(wait_s)  # some are cancelled before anybody has seen them, others in the queue
            for stream in streams:
                connection.send(http2.frame(http2.RST_STREAM, reset, stream=stream))
            stage.hits.update(frame.error for frame in connection.frames(_POLL_S) if frame.kind == http2.GOAWAY)
    num_cancelled = _at_rest(stage, cancelled_before)
    stage.hits["cancelled"] += num_sent
    return f"mt_requests_total{{CANCELLED}}{num_cancelled:+d}" if num_cancelled else ""


def _at_rest(stage: Stage, before: float) -> int:
    """Return how many calls the server counts as cancelled, once it counts no more."""
    until_s = time.monotonic() + _SETTLE_S
    last = -1.0
    while (now := stage.samples(_CANCELLED)) != last and time.monotonic() < until_s:
        last = now
        time.sleep(4 * _POLL_S)
    return round(now - before)


def _send_garbage(stage: Stage) -> str:
    """Send what is no gRPC; the server hangs up or answers, and goes on."""
    generator = random.Random(1)
    for _, kind in zip(range(stage.scale.num_garbage), itertools.cycle(garbage.KINDS)):
        with RawConnection(stage.target) as connection:
            connection.send(kind(generator))
            frames = list(connection.frames(_POLL_S))
            goaways = [frame.error for frame in frames if frame.kind == http2.GOAWAY and len(frame.payload) >= 8]
            stage.hits.update(goaways or (["closed"] if connection.is_closed else ["ignored"]))
    return ""


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


METADATA: Final = Fault(
    name="large-metadata",
    summary="metadata of 8 KiB to 1 MiB, and a thousand headers",
    run=_send_metadata,
    is_counted=False,
)
LARGE: Final = Fault(
    name="large-messages",
    summary="requests of 5 MiB, of 64 MiB compressed, and with lengths that lie",
    run=_send_large,
    is_counted=False,
)
PINGS: Final = Fault(name="ping-flood", summary="thousands of pings without a pause", run=_ping, is_counted=False)
RESETS: Final = Fault(
    name="rapid-reset",
    summary="thousands of calls, each cancelled as soon as it is sent (CVE-2023-44487)",
    run=_reset,
    limits=Limits(max_bystander_s=4.0),
)
GARBAGE: Final = Fault(
    name="garbage", summary="other protocols, noise and forbidden frames", run=_send_garbage, is_counted=False
)
