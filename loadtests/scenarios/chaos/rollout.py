"""A server is replaced, or its connections are closed, while clients with one connection each call it."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from dragoman.client import ChannelSettings, DragomanError, TranslationClient
from dragoman.client.channel import Balancing, service_config
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import SERVE, ServerProcess
from loadtests.scenarios.chaos.fault import FaultRun, fault

FAKE_SERVER: Final = (*SERVE, "--fake")
_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_TEXT: Final = "The weather is nice today."
_NUM_SENTENCES: Final = 500
_PAUSE_S: Final = 0.02  # between calls of a client
_WARM_UP_S: Final = 0.5
_TIMEOUT_S: Final = 30.0
_HEALTH_CHECKS: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": pb.DESCRIPTOR.services_by_name["TranslationService"].full_name},
}
_HTTP_BODY: Final = json.dumps({"texts": [_TEXT], "sourceLanguage": "en", "targetLanguage": "de"})


class Forwarder:
    """Forwards TCP connections to a port that can be changed for new connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def forward_to(self, port: int) -> None:
        """Forward new connections to another port."""
        self._port = port

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="forwarder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(source, sink), name="forwarder", daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@dataclass(slots=True, kw_only=True)
class ClientRun:
    """Calls of one client."""

    client: str
    transport: str
    max_cancelled: int  # calls that cross GOAWAY on the network, which gRPC cancels: 1 for a client without retries
    num_calls: int = 0
    failures: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    def repeat(self, call: Callable[[], None], is_over: threading.Event) -> None:
        """Call until the end."""
        while not is_over.wait(_PAUSE_S):
            began_s = time.monotonic()
            try:
                call()
            except (grpc.RpcError, DragomanError, OSError, http.client.HTTPException) as error:
                self.failures.append(str(error.code()) if isinstance(error, grpc.Call) else repr(error))
            self.num_calls += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


@contextmanager
def _channel(port: int, config: dict[str, Any] | None) -> Iterator[Callable[[], None]]:
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
    options += [("grpc.service_config", json.dumps(config))] if config else []
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = pb_grpc.TranslationServiceStub(channel)
        yield lambda: stub.Translate(pb.TranslateRequest(texts=[_TEXT], **_LANGUAGES), timeout=_TIMEOUT_S)


@contextmanager
def _python_client(port: int) -> Iterator[Callable[[], object]]:
    with TranslationClient(f"127.0.0.1:{port}") as client:
        yield lambda: client.translate([_TEXT], **_LANGUAGES)


@contextmanager
def _keep_alive(port: int) -> Iterator[Callable[[], None]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)

    def call() -> None:
        connection.request("POST", "/v1/translate", _HTTP_BODY, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()  # closes the connection after `Connection: close`; the next request opens a new one
        if response.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(f"status {response.status}")

    with contextlib.closing(connection):
        yield call


@contextmanager
def calling(grpc_port: int, http_port: int) -> Iterator[list[ClientRun]]:
    """Call through two forwarders within the block, with one connection of each kind of client."""
    documented = service_config(ChannelSettings(), Balancing.PICK_FIRST)
    clients: Sequence[tuple[str, str, int, AbstractContextManager[Callable[[], Any]]]] = (
        ("grpcio without retries", "gRPC", 1, _channel(grpc_port, None)),
        ("grpcio with the documented retries", "gRPC", 0, _channel(grpc_port, documented)),
        ("grpcio with health checks, without retries", "gRPC", 1, _channel(grpc_port, _HEALTH_CHECKS)),
        ("dragoman (Python)", "gRPC", 0, _python_client(grpc_port)),
        ("http.client, keep-alive", "HTTP", 0, _keep_alive(http_port)),
    )
    runs, threads, is_over = [], [], threading.Event()
    with ExitStack() as stack:
        for name, transport, max_cancelled, connect in clients:
            runs.append(ClientRun(client=name, transport=transport, max_cancelled=max_cancelled))
            arguments = (stack.enter_context(connect), is_over)
            threads.append(threading.Thread(target=runs[-1].repeat, args=arguments, name="client", daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield runs
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def _record(run: FaultRun, runs: Sequence[ClientRun]) -> None:
    print(f"{'client':<42} {'transport':<10} {'calls':>6} {'failed':>6} {'longest':>8}")
    for one in runs:
        num_failed = len(one.failures)
        print(f"{one.client:<42} {one.transport:<10} {one.num_calls:>6} {num_failed:>6} {one.longest_s:>6.2f} s")
        run.status_counts["OK"] += one.num_calls - num_failed
        num_cancelled = one.failures.count(str(grpc.StatusCode.CANCELLED))
        run.require(
            num_failed == num_cancelled <= one.max_cancelled,
            f"{one.client}: {num_failed} of {one.num_calls} calls failed: {one.failures[:3]}",
        )


@dataclass(frozen=True, slots=True)
class Replicas:
    """Two servers, and the forwarders of gRPC and HTTP, each with the port of the new server."""

    old: ServerProcess
    new: ServerProcess
    forwards: tuple[tuple[Forwarder, int], tuple[Forwarder, int]]

    @property
    def ports(self) -> tuple[int, int]:
        """Ports of the forwarders."""
        (grpc_forwarder, _), (http_forwarder, _) = self.forwards
        return grpc_forwarder.port, http_forwarder.port

    def replace(self, document_s: float) -> list[str]:
        """Stop the old server while it translates a document, and forward to the new one; return what went wrong."""
        # The slow sentence is the first one, so that the document is in progress for this time.
        text = "\n".join([f"fake:slow {document_s:g}", *[_TEXT] * _NUM_SENTENCES])
        with grpc.insecure_channel(self.old.target) as channel:
            document = pb_grpc.TranslationServiceStub(channel).TranslateDocument(
                pb.TranslateDocumentRequest(text=text, **_LANGUAGES), timeout=_TIMEOUT_S
            )
            time.sleep(_WARM_UP_S)
            for forwarder, port in self.forwards:
                forwarder.forward_to(port)
            exit_code = self.old.stop()
            num_sentences = sum(1 for _ in document)
        checks = {
            f"the old server exited with {exit_code}": exit_code == 0,
            f"the document has {num_sentences} sentences": num_sentences > _NUM_SENTENCES,
        }
        return [failure for failure, holds in checks.items() if not holds]


@contextmanager
def replicas() -> Iterator[Replicas]:
    """Start two servers with the fake model, and forwarders to the first one."""
    with (
        ServerProcess(module=FAKE_SERVER) as old,
        ServerProcess(module=FAKE_SERVER) as new,
    ):
        ports, new_ports = old.wait_until_ready(), new.wait_until_ready()
        with Forwarder(ports.grpc_port) as grpc_forwarder, Forwarder(ports.http_port) as http_forwarder:
            forwards = ((grpc_forwarder, new_ports.grpc_port), (http_forwarder, new_ports.http_port))
            yield Replicas(old, new, forwards)


@fault(seconds=(3.0, 10.0), expected={"OK"})
def rollout(run: FaultRun) -> None:
    """A server with a document in progress is replaced behind a load balancer of connections; no call fails."""
    with replicas() as servers:
        with calling(*servers.ports) as runs:
            time.sleep(_WARM_UP_S)
            run.broken += servers.replace(run.seconds)
            time.sleep(_WARM_UP_S)
        run.require(servers.new.stop() == 0, "the new server did not exit with 0")
        _record(run, runs)


@fault(seconds=(3.0, 10.0), expected={"OK"})
def aged_connections(run: FaultRun) -> None:
    """Connections are closed at a maximum age of half a second; no call fails."""
    with ServerProcess(module=FAKE_SERVER, environment={"DRAGOMAN_GRPC__MAX_CONNECTION_AGE_S": "0.5"}) as server:
        ports = server.wait_until_ready()
        with calling(ports.grpc_port, ports.http_port) as runs:
            time.sleep(run.seconds)
        run.require(server.stop() == 0, "the server did not exit with 0")
        _record(run, runs)
