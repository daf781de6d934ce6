import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.http_api.connection import READ_BYTES
from dragoman_service.http_api.context import Endpoint, HttpContext
from dragoman_service.http_api.server import HttpServer
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles
from tests.http_in_thread import http_server
from tests.http_wire import CHUNKED, GET, FakeTransport, Recorder, Wire, respond, statuses

TEST_TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang


async def reject(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer before the body has arrived."""
    await respond(send, 401, b"no key")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
UPGRADES = [
    b"POST /a HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"Content-Length: 5\r\n\r\nhello" + GET,
    b"POST /a HTTP/1.1\r\nHost: a\r\n"
    + UPGRADE
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    + GET,
]


@pytest.mark.parametrize("request_bytes", UPGRADES, ids=["length", "chunked"])
async def test_upgrade_request_keeps_its_body(request_bytes: bytes) -> None:
    for split in range(1, len(request_bytes)):
        app = Recorder()

        sent = await Wire(app).send(request_bytes[:split], request_bytes[split:])

        assert statuses(sent) == [200, 200], split
        assert app.bodies == [b"hello", b""], split
        assert [scope["path"] for scope in app.scopes] == ["/a", "/"]


async def test_upgrade_request_without_body_is_answered() -> None:
    app = Recorder()

    sent = await Wire(app).send(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" * 3)

    assert statuses(sent) == [200] * 3
    assert app.bodies == [b""] * 3


async def test_draining_connection_closes_after_the_last_response() -> None:
    wire = Wire(Recorder())
    first = await wire.send(GET)
    wire.connection.is_draining = True

    sent = (await wire.send(GET * 3)).removeprefix(first)

    assert statuses(sent) == [200] * 3
    assert sent.count(b"\r\nconnection: close\r\n") == 1
    assert b"connection: close" in sent.rpartition(b"HTTP/1.1")[2]
    assert wire.transport.is_half_closed


MALFORMED = {
    "two lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400),
    "signed length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400),
    "length and chunked": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunked and length": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        400,
    ),
    "coding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "last coding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "coding of HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    "binary": (b"\0\0\0\r\n\r\n", 400),
    "version": (b"GET / HTTP/x\r\n\r\n", 400),
    "NUL": (b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
    "chunk size": (CHUNKED + b"-1\r\n", 400),
    "target": (b"GET http://b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "CONNECT": (b"CONNECT b:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "HTTP/2": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 100 + b"\r\n", 431),
    "head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 30_000, 431),
    "chunk extensions": (CHUNKED + b"1;" + b"x" * 100_000, 400),
    "tiny chunks": (CHUNKED + b"1\r\na\r\n" * 20_000, 400),
    "trailers": (CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000, 400),
}


@pytest.mark.parametrize(("request_bytes", "status"), MALFORMED.values(), ids=MALFORMED)
async def test_malformed_request_is_rejected_and_ends_parsing(request_bytes: bytes, status: int) -> None:
    app = Recorder()
    wire = Wire(app)

    with capture_logs() as records:
        sent = await wire.send(request_bytes + GET)

    assert statuses(sent) == [status]
    assert b"\r\nconnection: close\r\n" in sent
    assert b"application/problem+json" in sent
    assert (app.bodies, wire.transport.is_half_closed, records) == ([], True, [])


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/a", b"a"),
        (b"http://b/a", b"b"),
        (b"HTTP://b:80/a?c=http://d/", b"b:80"),
        (b"http://[::1]:9/a", b"[::1]:9"),
        (b"http://user:password@b/a", b"b"),
        (b"/http://b/a", b"a"),
    ],
)
async def test_host_of_an_absolute_target_replaces_the_header(target: bytes, host: bytes) -> None:
    app = Recorder()

    sent = await Wire(app).send(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")

    assert statuses(sent) == [200]
    (scope,) = app.scopes
    assert [value for name, value in scope["headers"] if name == b"host"] == [host]


async def test_earlier_responses_precede_a_rejection() -> None:
    app = Recorder()

    sent = await Wire(app).send(GET + GET + b"nonsense\r\n\r\n")

    assert statuses(sent) == [200, 200, 400]


async def test_malformed_body_disconnects_its_application() -> None:
    app = Recorder()

    sent = await Wire(app).send(CHUNKED + b"5\r\nhello\r\n", b"x")

    assert (statuses(sent), app.bodies, app.num_disconnects) == ([400], [], 1)


async def test_head_of_maximum_size_is_accepted() -> None:
    app = Recorder()
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"x%d: y\r\n" % number for number in range(98)) + b"x: "

    sent = await Wire(app).send(head + b"x" * (16 * 1024 - len(head) - 4) + b"\r\n\r\n")

    assert (statuses(sent), len(app.scopes[0]["headers"])) == ([200], 100)


@pytest.mark.parametrize(
    ("request_bytes", "headers", "body"),
    [
        (b"GET / HTTP/1.1\r\nHost: a \t\r\nX:  b c \r\n\r\n", [(b"host", b"a"), (b"x", b"b c")], b""),
        (
            CHUNKED + b"1;x=y\r\na\r\n0\r\nAuthorization: Bearer key\r\nHost: b\r\n\r\n",
            [(b"host", b"a"), (b"transfer-encoding", b"chunked")],
            b"a",
        ),
    ],
    ids=["trailing spaces", "trailers"],
)
async def test_trailing_spaces_and_trailers_are_not_headers(
    request_bytes: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    app = Recorder()

    await Wire(app).send(request_bytes)

    assert (app.scopes[0]["headers"], app.bodies) == (headers, [body])


async def test_small_chunks_are_accepted_in_any_split() -> None:
    body = b"".join(b"1e\r\n%030d\r\n" % number for number in range(7_000)) + b"0\r\n\r\n"
    app = Recorder()

    sent = await Wire(app).send(CHUNKED + body)

    assert (statuses(sent), len(app.bodies[0])) == ([200], 210_000)


class Gate:
    """An application that answers when it is allowed to."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.num_begun = 0
        self.num_left = 0

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self.num_begun += 1
        waiting = asyncio.create_task(self.is_open.wait())
        leaving = asyncio.create_task(self._left(receive))
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            self.num_left += 1
        waiting.cancel()
        leaving.cancel()
        await respond(send, 200, b"")

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def test_pipelined_requests_are_answered_in_order_with_bounded_queue() -> None:
    app = Gate()
    wire = Wire(app)

    await wire.send(GET * 3000)

    num_kept = len(wire.connection.pipeline)
    assert (app.num_begun, wire.transport.is_paused) == (1, True)
    assert num_kept <= READ_BYTES // len(GET)
    app.is_open.set()
    while wire.unread or wire.connection.is_answering:
        await wire.settle()
        assert len(wire.connection.pipeline) <= num_kept + 16
    assert statuses(wire.transport.sent) == [200] * 3000


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_disconnect_cancels_all_requests_of_the_connection(num_requests: int) -> None:
    app = Gate()
    wire = Wire(app)
    await wire.send(GET * num_requests)

    wire.connection.connection_lost(None)
    await wire.settle()

    assert (app.num_begun, app.num_left) == (1, 1)
    assert not wire.transport.sent


PART = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("request_bytes", [PART, PART + b" " * 99], ids=["part", "whole"])
async def test_disconnect_cancels_the_application(request_bytes: bytes, reads: bool) -> None:
    outcomes = []

    async def answer(context: HttpContext) -> None:
        try:
            if reads:
                await context.read()
            await asyncio.Event().wait()
        finally:
            outcomes.append(context.is_disconnected)

    wire = Wire(Endpoint(answer, GrpcSettings()))
    await wire.send(request_bytes)
    assert outcomes == []

    wire.connection.connection_lost(None)
    await wire.settle()

    assert outcomes == [True]


async def test_disconnect_is_detected_during_a_large_request() -> None:
    async def answer(context: HttpContext) -> None:
        await context.read()
        await asyncio.Event().wait()

    num_reads = 100
    length = b"Content-Length: %d\r\n\r\n" % (num_reads * READ_BYTES)
    wire = Wire(Endpoint(answer, GrpcSettings()))
    await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" + length)
    for _ in range(num_reads):  # the application has no turn in between
        wire.connection.buffer_updated(READ_BYTES)
    await wire.settle()

    assert not wire.transport.is_paused


async def test_body_is_read_on_demand() -> None:
    may_read = asyncio.Event()
    app = Recorder()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await may_read.wait()
        await app(scope, receive, send)

    wire = Wire(late)
    await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000)

    assert (wire.transport.is_paused, len(wire.connection.cycle.body) < 100_000) == (True, True)
    may_read.set()
    while wire.unread:
        await wire.settle()
    assert app.bodies == [b"x" * 1_000_000]


async def test_rest_of_a_rejected_body_is_discarded_with_a_limit() -> None:
    wire = Wire(reject)

    sent = await wire.send(CHUNKED, b"no chunk" * 50_000)

    assert (statuses(sent), wire.transport.is_half_closed, wire.transport.is_paused) == ([401], True, True)
    assert b"\r\nconnection: close\r\n" in sent
    assert 400_000 - 64 * 1024 - READ_BYTES <= sum(map(len, wire.unread)) <= 400_000 - 64 * 1024


@pytest.mark.parametrize("request_bytes", [CHUNKED, b"GET / HTTP/1.1\r\n\r\n"], ids=["early answer", "malformed"])
async def test_reset_before_rejection_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    def fail(_transport: FakeTransport) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(FakeTransport, "write_eof", fail)
    wire = Wire(reject)

    with capture_logs() as records:
        await wire.send(request_bytes)

    assert (wire.transport.is_closed, wire.connection.is_ended, records) == (True, True, [])


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client."""
    authority = Authority()
    files = ServerFiles(Path(tmp_path_factory.mktemp("tls")), authority.sign(NAME))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cadata=authority.certificate.decode())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_requests_on_one_connection_are_answered(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], is_encrypted: bool
) -> None:
    app = Recorder()
    bodies = [*(b"%d" % number for number in range(20)), b"0123456789" * 300_000]
    server_context, client_context = tls
    with http_server(app, tls=(lambda: server_context) if is_encrypted else None) as server:
        client = (
            HTTPSConnection(NAME, server.port, timeout=TEST_TIMEOUT_S, context=client_context)
            if is_encrypted
            else HTTPConnection("127.0.0.1", server.port, timeout=TEST_TIMEOUT_S)
        )
        with closing(client):
            for body in bodies:
                client.request("POST", "/", body=body)
                assert client.getresponse().read() == body
            (connection,) = server._connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert len({scope["client"] for scope in app.scopes}) == 1


def test_events_are_sent_immediately() -> None:
    has_read = threading.Event()

    async def events(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
            await asyncio.to_thread(has_read.wait, TEST_TIMEOUT_S)
            has_read.clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    with (
        http_server(events) as server,
        closing(HTTPConnection("127.0.0.1", server.port, timeout=TEST_TIMEOUT_S)) as client,
    ):
        client.request("GET", "/")
        response = client.getresponse()
        for number in range(3):
            assert (response.readline(), response.readline()) == (b"data: %d\n" % number, b"\n")
            has_read.set()
        assert response.read() == b""


@pytest.fixture
def rejecting_server() -> Iterator[HttpServer]:
    with http_server(reject) as server:
        yield server


@pytest.mark.parametrize("is_chunked", [False, True])
def test_client_that_keeps_sending_can_read_its_rejection(rejecting_server: HttpServer, is_chunked: bool) -> None:
    head = CHUNKED if is_chunked else b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n" if is_chunked else b"x" * 65536
    with socket.create_connection(("127.0.0.1", rejecting_server.port), timeout=TEST_TIMEOUT_S) as client:
        client.sendall(head)
        client.setblocking(False)
        answer = b""
        while not answer.endswith(b"no key"):
            with suppress(BlockingIOError):
                client.send(part)
            with suppress(BlockingIOError):
                answer += client.recv(4096)
        client.settimeout(TEST_TIMEOUT_S)

        assert statuses(answer) == [401]
        assert b"\r\nconnection: close\r\n" in answer
        assert client.recv(1) == b""  # the server has sent all it will send


def test_client_that_sends_its_whole_body_can_read_its_rejection(rejecting_server: HttpServer) -> None:
    with closing(HTTPConnection("127.0.0.1", rejecting_server.port, timeout=TEST_TIMEOUT_S)) as client:
        client.request("POST", "/", body=b"x" * 200_000)
        response = client.getresponse()

        assert (response.status, response.read()) == (401, b"no key")


def test_expect_100_is_answered_with_continue() -> None:
    app = Recorder()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with (
        http_server(app) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=TEST_TIMEOUT_S) as client,
    ):
        client.sendall(head)
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert client.recv(12) == b"HTTP/1.1 200"

    assert app.bodies == [b"hello"]


async def test_rejection_replaces_100_continue() -> None:
    wire = Wire(reject)

    sent = await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")

    assert statuses(sent) == [401]


async def test_http_1_0_and_head_requests_are_answered() -> None:
    app = Recorder()

    old = Wire(app)
    assert (await old.send(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")).endswith(b"\r\n\r\nhello")
    head = await Wire(app).send(b"HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" + GET)

    assert old.transport.is_closed
    assert (statuses(head), b"hello" in head) == ([200, 200], False)
