"""The assembled service in the event loop of the test: real server, queue and graphs; its models can be halted."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.app import App
from dragoman_service.bundle.files import Bundle
from dragoman_service.config import Settings, load_settings, settings_of_model
from dragoman_service.datatypes import Ports
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.model_loader import onnx_loader
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.model import ModelRuntime
from dragoman_service.models.serving import SERVING_NAME, ServingSettings
from dragoman_service.observability.metrics import Metrics, observe_process
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.security.api_keys import StoredKey
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.worker.worker import Worker
from tests.fakes import GATE_TIMEOUT_S, ManualClock, WrappedModel
from tests.waiting import until

TEST_TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang


class HaltableModel(WrappedModel):
    """A model that the test can halt between steps."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self.step_s = 0.0  # duration of a step on the clock of the server
        self._clock = clock
        self._may_step = threading.Event()
        self._may_step.set()
        self._arrived = threading.Semaphore(0)
        self.num_batches = 0  # one for each decoding thread

    def halt(self) -> None:
        """Hold all steps from now on."""
        self._may_step.clear()

    def resume(self) -> None:
        """Release all steps."""
        self._may_step.set()

    async def halted_step(self) -> None:
        """Wait until a step is held."""
        assert await asyncio.to_thread(self._arrived.acquire, timeout=GATE_TIMEOUT_S), "no step arrived"

    def before(self, operation: str, num_segments: int) -> None:
        """Wait while halted."""
        self.num_batches += operation == "new_batch"
        if operation == "step" and not self._may_step.is_set():
            self._arrived.release()
            assert self._may_step.wait(GATE_TIMEOUT_S), "the test never resumed"
        if operation == "step" and self.step_s:
            self._clock.advance(self.step_s)


class RunningServer:
    """A server on free ports, with stubs on a connection.

    Args:
        settings: of the server.
        alter: changes the parts of each model; if given, models run in worker processes on the real clock.
    """

    def __init__(self, settings: Settings, alter: Callable[[ModelRuntime], ModelRuntime] | None = None) -> None:
        """Build the server in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry())
        self.models: list[HaltableModel] = []
        if alter is None:
            self.app = App(settings, metrics=self.metrics, load=self._loader(settings), clock=self.clock)
        else:
            observe_process(self.metrics.registry)
            load = onnx_loader(settings, self.metrics, loop=self._loop)
            self.app = App(settings, metrics=self.metrics, load=lambda *place: alter(load(*place)))
        self._ports: Ports | None = None
        self._channel: Any = None

    async def start(self) -> None:
        """Listen and connect without loading models."""
        self._ports = await self.app.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._ports.grpc_port}")

    async def stop(self) -> None:
        """Release all steps and stop the server."""
        for model in self.models:
            model.resume()
        if self._channel:
            await self._channel.close()
        await self.app.stop()

    @property
    def model(self) -> HaltableModel:
        """The only model."""
        (model,) = self.models
        return model

    @property
    def ports(self) -> Ports:
        assert self._ports
        return self._ports

    @property
    def port(self) -> int:
        """gRPC port."""
        return self.ports.grpc_port

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.http_port}"

    @property
    def channel(self) -> Any:
        return self._channel

    @property
    def translation(self) -> Any:
        """Stub of TranslationService."""
        return pb_grpc.TranslationServiceStub(self._channel)

    @property
    def model_service(self) -> Any:
        """Stub of ModelService."""
        return pb_grpc.ModelServiceStub(self._channel)

    @property
    def admin(self) -> Any:
        """Stub of ModelAdminService."""
        return pb_grpc.ModelAdminServiceStub(self._channel)

    def reflect(self, version: str) -> Any:
        """Method of a version of the reflection service."""
        return self._channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )

    def translate(
        self, *texts: str, metadata: tuple[tuple[str, str], ...] = (), timeout_s: float | None = None, **fields: Any
    ) -> Any:
        """Start a call and return it."""
        return self.translation.Translate(request(*texts, **fields), metadata=metadata, timeout=timeout_s)

    async def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """Send a request to the port of metrics and probes; return status and body."""
        async with httpx.AsyncClient(timeout=TEST_TIMEOUT_S, trust_env=False) as client:
            url = f"http://127.0.0.1:{self.ports.metrics_port}{path}"
            response = await client.get(url, headers={"accept": accept})
        return response.status_code, response.text

    def sample(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it does not exist."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until_sample(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric has a value."""
        await until(lambda: self.sample(name, **labels) == value)

    def _loader(self, settings: Settings) -> ModelLoader:
        def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
            own_settings = settings_of_model(settings, serving, origin=bundle.directory.parent / SERVING_NAME)
            network = OnnxStepModel(bundle, own_settings.runtime)
            model, placement = HaltableModel(network, self.clock), network.placement
            self.models.append(model)
            return ModelRuntime(
                tokenizer=open_tokenizer(bundle),
                scheduler=Scheduler(
                    Worker(model, clock=self.clock),
                    model.limits,
                    own_settings.scheduling.on(placement.device),
                    self.metrics,
                    self.clock,
                    loop=self._loop,
                ),
                precision=placement.precision,
                device=placement.device,
                weights_bytes=network.weights_bytes,
                cache_bytes=lambda: network.cache_bytes,
            )

        return load


@contextlib.asynccontextmanager
async def listening_server(
    models: Path, *, alter: Callable[[ModelRuntime], ModelRuntime] | None = None, **settings: Any
) -> AsyncIterator[RunningServer]:
    """Run a server without loading models; settings by name, with `__` for the dot."""
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    ports = {"grpc.port": 0, "http.port": 0, "scheduling.num_workers": 1}
    server = RunningServer(load_settings(flags={"models.directory": models, **ports, **flags}), alter)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def running_server(models: Path, **settings: Any) -> AsyncIterator[RunningServer]:
    """Run a ready server."""
    async with listening_server(models, **settings) as server:
        await server.app.load()
        yield server


def observed_server(models: Path, **settings: Any) -> contextlib.AbstractAsyncContextManager[RunningServer]:
    """Run a ready server with worker processes on the real clock, for tests of metrics, traces and logs."""
    return running_server(models, **{"alter": lambda parts: parts, **settings})


@contextlib.asynccontextmanager
async def http_client(server: RunningServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    options = {"base_url": server.url, "timeout": TEST_TIMEOUT_S, "trust_env": False, **options}
    async with httpx.AsyncClient(**options) as client:
        yield client


def caller_entry(name: str, key: str, *permissions: str, **limits: float) -> str:
    """Return an entry of a callers file; without permissions, the caller can translate."""
    lines = [
        f'name = "{name}"',
        f'keys = ["{StoredKey.of(key)}"]',
        f"permissions = {list(permissions or ('translate',))}",
    ]
    return "\n".join(["[[caller]]", *lines, *(f"{limit} = {value}" for limit, value in limits.items()), ""])


def write_callers(directory: Path, keys: Mapping[str, str], **limits: float) -> Path:
    """Write a callers file with a key of each caller that can translate."""
    path = directory / "callers.toml"
    path.write_text("".join(caller_entry(name, key, **limits) for name, key in keys.items()), encoding="utf-8")
    return path


def bearer(key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call with a key."""
    return (("authorization", f"Bearer {key}"),) if key else ()


def described_service(answer: reflection_pb2.ServerReflectionResponse, name: str) -> ServiceDescriptor:
    """Return the descriptor of a service, built only from reflection."""
    files = [FileDescriptorProto.FromString(raw) for raw in answer.file_descriptor_response.file_descriptor_proto]
    assert files, answer.error_response
    pool = DescriptorPool()
    while files:
        independent = [file for file in files if not {*file.dependency} & {other.name for other in files}]
        assert independent, "the files depend on each other"
        for file in independent:
            pool.Add(file)
            files.remove(file)
    return pool.FindServiceByName(name)


def request(*texts: str, **fields: Any) -> pb.TranslateRequest:
    """Return a request from English to German."""
    return pb.TranslateRequest(**{"texts": texts, "source_language": "en", "target_language": "de", **fields})


class Rejection:
    """The error of a call, with its details."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code: str = error.code().name
        self.message: str = error.details()
        self.trailing = dict(error.trailing_metadata() or ())
        self._error = error

    @property
    def reason(self) -> str:
        """Reason of the ErrorInfo; empty if gRPC created the status."""
        reason: str = self._detail(error_details_pb2.ErrorInfo()).reason
        return reason

    @property
    def fields(self) -> list[str]:
        """Invalid fields of the BadRequest."""
        return [violation.field for violation in self._detail(error_details_pb2.BadRequest()).field_violations]

    @property
    def retry_delay_ms(self) -> int:
        """Delay of the RetryInfo."""
        delay: int = self._detail(error_details_pb2.RetryInfo()).retry_delay.ToMilliseconds()
        return delay

    def _detail(self, detail: Message) -> Any:
        return unpacked(rpc_status.from_call(self._error), detail)


def unpacked(status: Any, detail: Message) -> Any:
    """Fill a message from the detail of its type, if the status has one, and return it."""
    for packed in status.details if status else ():
        if packed.Unpack(detail):
            break
    return detail


async def rejection(call: Any) -> Rejection:
    """Await a call that must fail; return its error."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return Rejection(error)
    raise AssertionError(f"the call was answered: {response}")
