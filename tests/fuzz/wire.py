"""Bytes on both ports of a real server, which must continue to serve others."""

import contextlib
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import grpc
from hpack import Encoder
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.datatypes import Ports
from loadtests.generator.calls import Method
from loadtests.generator.metrics import scrape
from loadtests.hostile.attacks import ATTACKS, Credentials
from loadtests.hostile.http2 import PREFACE, TLS_HELLO, raw_frame
from loadtests.hostile.mutations import MAX_INPUT_BYTES, mutated
from tests.fuzz.calls import TRANSLATION_MESSAGES
from tests.fuzz.target import Check, Target
from tests.integration.real_process import START_S, process

_HOSTILE_HOST: Final = "127.0.0.2"  # limits per client must not affect the well-behaved client
_LISTEN_S: Final = 0.1  # for a response to an input
_TIMEOUT_S: Final = 10.0
_MAX_GROWTH_BYTES: Final = 192 << 20  # of the server, over all inputs
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9


@contextmanager
def _server(send: Callable[[Ports, bytes], None]) -> Iterator[Check]:
    with process() as server:
        ports = server.wait_until_ready(timeout_s=START_S)
        with grpc.insecure_channel(f"127.0.0.1:{ports.grpc_port}") as channel:
            client = _Client(channel, ports.http_port)
            client.check()
            limit_bytes = client.server_bytes() + _MAX_GROWTH_BYTES

            def check(content: bytes) -> None:
                send(ports, content)
                client.check()
                assert client.server_bytes() <= limit_bytes

            yield check


class _Client:
    """A well-behaved client that also probes and scrapes."""

    def __init__(self, channel: grpc.Channel, http_port: int) -> None:
        self._stub = pb_grpc.TranslationServiceStub(channel)
        self._url = f"http://127.0.0.1:{http_port}"

    def check(self) -> None:
        """Call both ports; an error is a finding."""
        request = pb.TranslateRequest(texts=["Hi."], source_language="en", target_language="de")
        assert self._stub.Translate(request, timeout=_TIMEOUT_S).translations
        with urllib.request.urlopen(f"{self._url}/readyz", timeout=_TIMEOUT_S) as response:  # noqa: S310 - http
            assert response.status == 200

    def server_bytes(self) -> float:
        """Return the resident memory of the server."""
        return scrape(f"{self._url}/metrics")["process_resident_memory_bytes"]


def _send(port: int, content: bytes) -> bytes:
    """Send bytes on a new connection and return the response of a short time; the server may close it at any time."""
    answer = b""
    with contextlib.suppress(OSError), socket.socket() as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.bind((_HOSTILE_HOST, 0))
        connection.connect(("127.0.0.1", port))
        connection.sendall(content)
        until_s = time.monotonic() + _LISTEN_S
        while (remaining_s := until_s - time.monotonic()) > 0:
            connection.settimeout(remaining_s)
            if not (received := connection.recv(65_536)):
                break
            answer += received
    return answer


def _send_http2(ports: Ports, content: bytes) -> None:
    _send(ports.grpc_port, content)


def _send_http(ports: Ports, content: bytes) -> None:
    answer = _send(ports.http_port, content)
    assert b"Traceback" not in answer
    assert b"HTTP/1.1 500" not in answer


_STREAMS = st.one_of(st.sampled_from([1, 1, 3, 5, 0, 2]), st.integers(0, 2**32 - 1))
_NUMBERS = st.one_of(st.integers(0, 8), st.integers(0, 2**32 - 1), st.sampled_from([65_535, 2**31 - 1, 16_384]))
_NAMES = st.sampled_from(
    [":method", ":path", ":scheme", ":authority", ":status", ":", "", "te", "content-type", "grpc-timeout", "cookie",
     "grpc-encoding", "authorization", "x-request-id", "content-length", "host", "UPPER", "a b", "grpc-status-bin",
     "grpc-accept-encoding", "user-agent", "connection", "transfer-encoding", "traceparent", "grpc-tags-bin"]
)  # fmt: skip
_VALUES = st.one_of(
    st.sampled_from(["", "POST", "GET", "/", "1n", "99999999H", "-1S", "0m", "gzip", "identity", "application/grpc+x"]),
    st.sampled_from(["Bearer x", "Bearer ", "!!!", "AAAA", "\r\n", "\0", "é", "x" * 9000, "00-" + "0" * 32 + "-1-ff"]),
    st.text(st.characters(max_codepoint=255), max_size=10),
)
_PATHS = st.sampled_from(
    [
        *(method.path for method in Method),
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        *("/dragoman.v1.TranslationService/None", "/a/b/c", "*"),
    ]
)
_EDITS = st.tuples(st.integers(0, 9), st.integers(0, 1), _NAMES, _VALUES, st.sampled_from([0, 1, 1, 2, 100]))


def _header_block(path: str, edits: Sequence[tuple[int, int, str, str, int]]) -> bytes:
    """Return the headers of a call, with some removed, repeated or added."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    headers += [("content-type", "application/grpc"), ("te", "trailers")]
    for place, num_removed, name, value, times in edits:
        headers[place : place + num_removed] = [(name, value)] * times
    encoded: bytes = Encoder().encode([(name.encode(), value.encode("latin-1")) for name, value in headers])
    return encoded


def _body(message: bytes, length: int | None, flag: int, num_bytes: int) -> bytes:
    """Return a message of gRPC, possibly with a wrong length or flag, or cut off."""
    prefix = bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big")
    return (prefix + message)[:num_bytes]


def _call(stream: int, block: bytes, cut: int | None, body: bytes, flags: int) -> bytes:
    headers = raw_frame(_HEADERS, 4, stream, block)
    if cut is not None:
        headers = raw_frame(_HEADERS, 0, stream, block[:cut]) + raw_frame(_CONTINUATION, 4, stream, block[cut:])
    return headers + raw_frame(_DATA, flags, stream, body)


_BLOCKS = st.builds(_header_block, st.one_of(_PATHS, _PATHS, _VALUES), st.lists(_EDITS, max_size=5))
_BODIES = st.builds(
    _body,
    st.one_of(TRANSLATION_MESSAGES.map(lambda sent: sent[1:]), st.binary(max_size=20)),
    st.one_of(st.none(), st.none(), _NUMBERS),
    st.sampled_from([0, 0, 0, 1, 2, 255]),
    st.sampled_from([16_384, 16_384, 5, 3]),
)
_CALLS = st.builds(
    _call, _STREAMS, _BLOCKS, st.one_of(st.none(), st.integers(0, 40)), _BODIES, st.sampled_from([1, 1, 0])
)
_SETTINGS_PAIRS = st.lists(st.builds(lambda name, value: struct.pack(">HI", name, value), st.integers(0, 9), _NUMBERS))
_FRAMES = st.builds(
    raw_frame,
    st.one_of(st.sampled_from([_SETTINGS, _HEADERS, _CONTINUATION]), st.integers(0, 12)),
    st.one_of(st.sampled_from([0, 1, 4]), st.integers(0, 255)),
    _STREAMS,
    st.one_of(
        _SETTINGS_PAIRS.map(b"".join), _NUMBERS.map(lambda number: number.to_bytes(4, "big")), st.binary(max_size=40)
    ),
    length=st.one_of(st.none(), st.none(), st.integers(0, 2**24 - 1)),
)
_PREFACES = st.sampled_from([*[PREFACE + raw_frame(_SETTINGS, 0, 0, b"")] * 4, PREFACE, b"", PREFACE[:16], TLS_HELLO])
_PARTS = st.tuples(st.one_of(_CALLS, _FRAMES), st.sampled_from([1, 1, 1, 1, 2, 50, 400]))
_CONNECTIONS = st.builds(
    lambda preface, parts: (preface + b"".join(part * times for part, times in parts))[:MAX_INPUT_BYTES],
    _PREFACES,
    st.lists(_PARTS, max_size=8),
)


def _post(path: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Request-Timeout: 1\r\n" % path
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


_CREDENTIALS: Final = Credentials(key="dgm_0123456789ab_x", key_id="a")
_HTTP_SEEDS: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /readyz?a=b HTTP/1.0\r\n\r\n",
    _post(b"/v1/translate", b'{"texts":["A man."],"sourceLanguage":"en","targetLanguage":"de"}'),
    _post(b"/v1/translate/document", b'{"text":"A man.","source_language":"en","targetLanguage":"de","options":{}}'),
    *(b"".join(attack.payload(1, _CREDENTIALS).parts) for attack in ATTACKS.values() if attack.port != "grpc"),
)
_HTTP_TOKENS: Final = [
    *b'\n \0 : / %00 % ? name[]=x& .. HTTP/9.9 HTTP/ \xff " [[ NaN \\ud800'.split(b" "),
    *(b" ", b"\r\n", b"\r\n\r\n", b"x: y\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Accept: ;q=\r\n", b"Accept: text/plain;version=0.0.4;escaping=x\r\n", b"X-Request-Timeout: nan\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Origin: null\r\n"),
]

WIRE: Final = (
    Target(
        name="http2",
        inputs=st.one_of(
            _CONNECTIONS, _CONNECTIONS.flatmap(lambda content: mutated([content], [b"\xff", b"\0", PREFACE]))
        ),
        opened=lambda: _server(_send_http2),
        share=3,
    ),
    Target(name="http", inputs=mutated(_HTTP_SEEDS, _HTTP_TOKENS), opened=lambda: _server(_send_http)),
)
