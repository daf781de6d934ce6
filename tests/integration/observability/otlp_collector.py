"""An OpenTelemetry collector in this process, which receives spans over OTLP/gRPC and stores them."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc

from tests.fakes import GATE_TIMEOUT_S


class Collector(pb_grpc.TraceServiceServicer):
    """Stores received spans; while halted, it accepts requests and does not answer."""

    def __init__(self) -> None:
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.metadata: dict[str, str] = {}
        self.port = 0
        self._may_answer = threading.Event()
        self._may_answer.set()

    @property
    def endpoint(self) -> str:
        """Value of the setting `tracing.endpoint`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Any]:
        """All spans so far, in the order of their ends."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        """Attributes of the sending service."""
        return attributes(self.requests[0].resource_spans[0].resource)

    def halt(self) -> None:
        """Stop answering calls."""
        self._may_answer.clear()

    def resume(self) -> None:
        """Answer calls again."""
        self._may_answer.set()

    def Export(  # noqa: N802
        self, request: pb.ExportTraceServiceRequest, context: Any
    ) -> pb.ExportTraceServiceResponse:
        """Receive spans."""
        self._may_answer.wait(GATE_TIMEOUT_S)
        self.metadata = dict(context.invocation_metadata())
        self.requests.append(request)
        return pb.ExportTraceServiceResponse()


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    pb_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        collector.resume()
        server.stop(None).wait(GATE_TIMEOUT_S)


def attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource as a dictionary."""
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in owner.attributes}
