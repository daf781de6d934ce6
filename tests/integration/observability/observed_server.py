"""The assembled service on the real clock, for tests of metrics, traces and logs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.app import App
from dragoman_service.config import load_settings
from dragoman_service.model_loader import onnx_loader
from dragoman_service.models.model import ModelRuntime
from dragoman_service.observability.metrics import Metrics, observe_process
from tests.integration.running_server import PATIENCE_S, request

TEXT = "text/plain"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class ObservedServer:
    """A server on free ports; `alter` may change the parts of its models."""

    def __init__(
        self, models: Path, *, alter: Callable[[ModelRuntime], ModelRuntime] = lambda parts: parts, **settings: Any
    ) -> None:
        flags = {name.replace("__", "."): value for name, value in settings.items()}
        ports = {"grpc.port": 0, "http.port": 0, "scheduling.num_workers": 1}
        loaded = load_settings(flags={"models.directory": models, **ports, **flags})
        self.metrics = Metrics(CollectorRegistry())
        observe_process(self.metrics.registry)
        load = onnx_loader(loaded, self.metrics)
        self.app = App(loaded, metrics=self.metrics, load=lambda *place: alter(load(*place)))
        self._channel: Any = None
        self._http_port = 0

    async def start(self) -> None:
        """Listen, load and connect."""
        ports = await self.app.start()
        self._http_port = ports.http_port
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc_port}")
        await self.app.load()

    async def stop(self) -> None:
        """Stop the server; may be called twice."""
        if self._channel is not None:
            await self._channel.close()
        await self.app.stop()

    @property
    def stub(self) -> Any:
        """Stub of TranslationService."""
        return pb_grpc.TranslationServiceStub(self._channel)

    @property
    def channel(self) -> Any:
        """The connection."""
        return self._channel

    async def translate(
        self, *texts: str, traceparent: str = "", timeout_s: float | None = None, **fields: Any
    ) -> pb.TranslateResponse:
        """Translate from English to German as a part of a trace."""
        metadata = (("traceparent", traceparent),) if traceparent else ()
        response: pb.TranslateResponse = await self.stub.Translate(
            request(*texts, **fields), metadata=metadata, timeout=timeout_s
        )
        return response

    def sample(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it does not exist."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def scrape(self, accept: str = TEXT) -> str:
        """Return `/metrics` in a format."""
        return await asyncio.to_thread(self._scrape, accept)

    def _scrape(self, accept: str) -> str:
        with contextlib.closing(HTTPConnection("127.0.0.1", self._http_port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", "/metrics", headers={"Accept": accept})
            response = connection.getresponse()
            assert response.getheader("Content-Type", "").startswith(accept.partition(";")[0])
            return response.read().decode()


@contextlib.asynccontextmanager
async def observed_server(models: Path, **settings: Any) -> AsyncIterator[ObservedServer]:
    """Run a ready server."""
    server = ObservedServer(models, **settings)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
