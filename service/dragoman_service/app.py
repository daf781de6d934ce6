"""Composition root: builds the components, starts, drains and stops the server."""

import asyncio
import gc
import logging
import resource
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.routing import Route

from dragoman_service.calls.flow_control import ConcurrencyLimiter
from dragoman_service.calls.handlers import Handlers
from dragoman_service.config import Settings
from dragoman_service.datatypes import Ports
from dragoman_service.errors import ConfigError
from dragoman_service.file_translation.jobs import DocumentJobs
from dragoman_service.file_translation.store import DocumentStore
from dragoman_service.grpc_api.server import GrpcServer
from dragoman_service.http_api.application import ErrorForm, protected_app
from dragoman_service.http_api.index import with_index
from dragoman_service.http_api.monitoring import monitoring_routes
from dragoman_service.http_api.playground import playground_routes
from dragoman_service.http_api.routes import TranslationApi
from dragoman_service.http_api.server import HttpServer
from dragoman_service.model_loader import onnx_loader
from dragoman_service.models.glossaries import GlossaryRepository, glossaries_directory
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.repository import ModelRepository
from dragoman_service.models.watcher import LOAD_THREAD_PREFIX, watch
from dragoman_service.observability.gpu_metrics import observe_gpus
from dragoman_service.observability.logs import LogStream
from dragoman_service.observability.metrics import Metrics, observe_process
from dragoman_service.observability.tracing import start_tracing
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import UNIX_SCHEME, is_loopback
from dragoman_service.security.tls import TlsIdentityFiles
from dragoman_service.signals import UNUSED_SIGNALS, drain_signals, ignore
from dragoman_service.threads import call_in_daemon, exit_after, num_cores, shorten_slices, started_pool
from dragoman_service.translation.translator import Translator
from dragoman_service.translation.warm_up import warm_up
from dragoman_service.vendor_apis.azure import AzureApi
from dragoman_service.vendor_apis.deepl import DeepLApi
from dragoman_service.vendor_apis.document_files import document_routes
from dragoman_service.vendor_apis.google import google_apis, google_translation
from dragoman_service.vendor_apis.libretranslate import LibreTranslateApi

log = logging.getLogger(__name__)

_HTTP_GRACE_S = 1.0  # for HTTP responses in progress
_MAX_FLUSH_S = 2.0  # for unsent traces, after the last response
_MAX_STOP_S = 4.5  # from the end of the drain to the exit; the process ends within 5 s
_NUM_EXTRA_THREADS = 4  # of the event loop's pool, in addition to one for each core: some calls wait for files


def document_jobs(
    settings: Settings, translator: Translator, limiter: ConcurrencyLimiter, metrics: Metrics
) -> DocumentJobs | None:
    """Return the translation of uploaded documents, None if off; ConfigError if the directory is unusable."""
    if settings.documents.directory is None:
        return None
    if not settings.http.serves_api(settings.tls):
        expected = "unset, because the HTTP API is off (http.api)"
        raise ConfigError("documents.directory", str(settings.documents.directory), expected)
    store = DocumentStore(settings.documents)
    return DocumentJobs(
        settings.documents, store, translator=translator, limiter=limiter, grpc=settings.grpc, metrics=metrics
    )


def http_servers(
    settings: Settings,
    tls: TlsIdentityFiles | None,
    apis: Sequence[tuple[list[Route], ErrorForm]],
    monitoring: list[Route],
    models: ModelRepository,
) -> list[HttpServer]:
    """Bind the HTTP port and the metrics port if it is separate; ConfigError if a port is in use."""
    http = settings.http
    error_forms = apis if http.serves_api(settings.tls) else []
    routes = [route for of_api, _ in error_forms for route in of_api]
    if http.playground:
        if not routes:
            raise ConfigError("http.playground", True, "false, because the HTTP API is off (http.api)")
        routes = [*routes, *playground_routes()]
    encryption = tls.context if tls and routes else None
    if http.metrics_port is None:
        routes = with_index([*monitoring, *routes], models)
        return [HttpServer(http, protected_app(routes, http, error_forms), tls=encryption)]
    monitoring_http = http.of_monitoring()
    monitoring = with_index(monitoring, models)
    metrics_server = HttpServer(
        monitoring_http, protected_app(monitoring, monitoring_http), setting="http.metrics_port"
    )
    if not routes:
        return [metrics_server]
    routes = with_index(routes, models)
    return [HttpServer(http, protected_app(routes, http, error_forms), tls=encryption), metrics_server]


class App:
    """The server. Call `start`, `load`, `drain` and `stop` in this order; `stop` may follow any of them."""

    def __init__(
        self, settings: Settings, *, metrics: Metrics, load: ModelLoader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Build all components within a running event loop without listening; `load` must use the same clock."""
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        access = Access(
            settings.access,
            metrics,
            asks_certificates=settings.tls.client_ca_file is not None,
            is_reachable_remotely=not is_loopback(settings.grpc.host),
            clock=clock,
        )
        self._models = ModelRepository(
            settings.models, load, metrics, warm_up=partial(warm_up, defaults=settings.defaults)
        )
        directory = glossaries_directory(settings.models.glossaries_directory, settings.models.directory)
        self._glossaries = GlossaryRepository(directory, metrics)
        self._watching: asyncio.Task[None] | None = None
        translator = Translator(
            self._models,
            self._glossaries,
            metrics=metrics,
            limits=settings.limits,
            defaults=settings.defaults,
            clock=clock,
            take_tokens=access.take_tokens,
        )
        self._tracing = start_tracing(
            settings.tracing,
            clock=clock,
            count=lambda outcome, num_spans: metrics.trace_spans.labels(outcome).inc(num_spans),
        )
        handlers = Handlers(
            translator=translator, models=self._models, glossaries=self._glossaries, limits=settings.limits
        )
        self._tls = TlsIdentityFiles(settings.tls, metrics) if settings.tls.is_on else None
        google = google_translation(settings.grpc, handlers)
        self._grpc = GrpcServer(
            settings.grpc,
            handlers=handlers,
            metrics=metrics,
            access=access,
            tls=self._tls,
            tracing=self._tracing,
            logs=settings.logs,
            clock=clock,
            extension=google,
        )
        self._documents = document_jobs(settings, translator, self._grpc.pipeline.limiter, metrics)
        apis = [
            *google_apis(google, self._grpc.pipeline, handlers),  # first: DeepL's API rejects other paths below /v3
            *(api(self._grpc.pipeline, handlers) for api in (TranslationApi, AzureApi, LibreTranslateApi, DeepLApi)),
        ]
        self._api = [([*document_routes(self._documents, [api]), *api.routes()], api.error_response) for api in apis]
        self._http: list[HttpServer] = []
        self._is_ready = False

    async def start(self) -> Ports:
        """Listen and answer probes; translation is rejected until `load` returns. ConfigError if a port is in use."""
        monitoring = monitoring_routes(self._metrics.registry, lambda: self._is_ready)
        self._http = http_servers(self._settings, self._tls, self._api, monitoring, self._models)
        for server in self._http:
            server.start()
        if self._documents:
            self._documents.start()
        ports = Ports(
            grpc_port=await self._grpc.start(),
            http_port=self._http[0].port,
            metrics_port=self._http[-1].port,
        )
        host = self._settings.grpc.host
        log.info("listening", extra=asdict(ports) | ({"grpc_socket": host} if host.startswith(UNIX_SCHEME) else {}))
        if self._settings.logs.include_texts:
            log.warning("texts of callers are written into the log", extra={"setting": "logs.include_texts"})
        return ports

    async def load(self) -> None:
        """Load and warm up all models, accept calls, and watch the model directory.

        Raises the errors of `ModelRepository.load_all`.
        """
        await asyncio.to_thread(self._glossaries.refresh)
        await call_in_daemon(self._models.load_all, name=f"{LOAD_THREAD_PREFIX}all")  # a signal must not wait for it
        await self._grpc.open()
        self._set_ready(True)
        self._watching = asyncio.create_task(watch(self._refresh, interval_s=self._settings.models.poll_interval_s))
        models = [f"{status.name}/{status.version}" for status in self._models.list_models()]
        log.info("ready", extra={"models": models})

    async def drain(self) -> bool:
        """Answer all accepted calls, and send clients to other servers; return False if the drain times out."""
        log.info("draining", extra={"timeout_s": self._settings.grpc.drain_timeout_s})
        self._stop_watching()
        self._set_ready(False)
        for server in self._http:
            server.drain()
        try:
            async with asyncio.timeout(self._settings.grpc.drain_timeout_s):
                await self._grpc.drain()
                if self._documents:
                    await self._documents.stop()
                await self._grpc.wait_until_answered()
                for server in self._http:
                    await server.wait_until_answered()
        except TimeoutError:
            log.warning("drain timed out; unanswered requests get an error")
            return False
        return True

    async def stop(self) -> None:
        """Stop all components; unanswered calls get an error."""
        self._set_ready(False)
        self._stop_watching()
        if self._documents:
            await self._documents.stop()
        # Before gRPC stops, which would cancel the calls without a reason. Not in the pool, whose threads may be busy.
        await call_in_daemon(self._models.stop, name="stop")
        await asyncio.gather(self._grpc.stop(), *(server.stop(_HTTP_GRACE_S) for server in self._http))
        flush_s = min(self._settings.grpc.drain_timeout_s, _MAX_FLUSH_S)
        await call_in_daemon(partial(self._tracing.stop, flush_s), name="tracing-stop")
        log.info("stopped")

    def _stop_watching(self) -> None:
        if self._watching:
            self._watching.cancel()

    def _refresh(self) -> None:
        self._glossaries.refresh()
        self._models.refresh(waits=False)

    def _set_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        self._metrics.ready.set(is_ready)


async def serve(
    settings: Settings, log_stream: LogStream, *, make_loader: Callable[..., ModelLoader] = onnx_loader
) -> bool:
    """Serve until one of `DRAIN_SIGNALS`, then drain; a second signal stops the server at once.

    If the drain and the exit exceed their timeout, the process ends with exit code 1. `make_loader` returns the loader
    of models; its arguments are those of `onnx_loader`.

    Returns:
        True if every admitted call was answered.

    Raises:
        ConfigError: if a setting does not fit the machine or the models.
        BundleError: if a model cannot be loaded.
        EngineError: if a model cannot translate.
    """
    drain, stop = _signal_events(drain_timeout_s=settings.grpc.drain_timeout_s)
    if shorten_slices():  # of this thread and of all later threads except decoding threads
        settings = settings.model_copy(update={"scheduling": settings.scheduling.with_short_slices()})
    pool = started_pool(num_cores() + _NUM_EXTRA_THREADS, name="text", is_awaited=False)
    asyncio.get_running_loop().set_default_executor(pool)
    raise_open_files(settings.max_open_files)
    metrics = Metrics(CollectorRegistry())
    observe_process(metrics.registry)
    observe_gpus(metrics)
    log_stream.count_lost(metrics.lost_log_lines.inc)
    stopping = threading.Event()
    load = make_loader(settings, metrics, stopping=stopping, loop=asyncio.get_running_loop())
    app = App(settings, metrics=metrics, load=load)
    try:
        await app.start()
        gc.freeze()  # imported modules stay in memory: scanning them in each collection would pause all requests
        return await _run_until(stop, _serve_until(drain, app))
    finally:
        stopping.set()  # ends loads and their worker processes
        await app.stop()


def raise_open_files(needed: int) -> None:
    """Raise the limit of open files of this process as far as it may, and log a warning if it stays below `needed`."""
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != highest:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
            limit = highest
        except (OSError, ValueError):  # some systems have a lower limit of their own
            log.debug("limit of open files cannot be raised", exc_info=True)
    if limit != resource.RLIM_INFINITY and limit < needed:
        log.warning("limit of open files is below the allowed connections", extra={"limit": limit, "needed": needed})


async def _serve_until(drain: asyncio.Event, app: App) -> bool:
    if not await _run_until(drain, _load(app)):
        return True  # no call was admitted
    await drain.wait()
    return await app.drain()


async def _load(app: App) -> bool:
    await app.load()
    return True  # `_run_until` returns False if the load is cancelled


def _signal_events(*, drain_timeout_s: float) -> tuple[asyncio.Event, asyncio.Event]:
    """Return the events set by the first and by later signals; each signal limits the time to the exit."""
    first, second = asyncio.Event(), asyncio.Event()

    def received(number: signal.Signals) -> None:
        log.info("signal received", extra={"signal": number.name})
        exit_after(_MAX_STOP_S if first.is_set() else drain_timeout_s + _MAX_STOP_S, 1)
        (second if first.is_set() else first).set()

    for number in drain_signals():
        asyncio.get_running_loop().add_signal_handler(number, received, number)
    ignore(*UNUSED_SIGNALS)
    return first, second


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, bool]) -> bool:
    """Return the result of `work`; cancel it and return False once `stop` is set."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        stopping.cancel()
        return working.result()
    working.cancel()
    await asyncio.wait((working,))
    return False
