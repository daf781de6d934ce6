"""A front-end process: gRPC, authentication and text work; the owner has scheduler, models, limits and metrics.

    python -m dragoman_service.front_end CONNECTION CALL_COUNT DIGEST

Only `processes.session` starts it, with the descriptors of a socket and of shared memory, and the digest of the
messages of the owner.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from asyncio import FIRST_COMPLETED
from functools import partial

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from dragoman_service.errors import DragomanError
from dragoman_service.grpc_api.server import GrpcServer
from dragoman_service.middleware.pipeline import Backend
from dragoman_service.models.glossaries import GlossaryRepository, glossaries_directory
from dragoman_service.models.watcher import watch
from dragoman_service.observability.logs import MAX_LOG_DELAY_S, LogStream, configure_logs
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.tracing import start_tracing
from dragoman_service.processes.call_count import SharedCallCount
from dragoman_service.processes.merged_metrics import summable
from dragoman_service.processes.messages import (
    Drained,
    Failed,
    Listening,
    MetricsReport,
    StartCommand,
    messages_digest,
)
from dragoman_service.processes.remote import Owner, RemoteAccess, RemoteModels, submit_remotely
from dragoman_service.security.settings import is_loopback
from dragoman_service.security.tls import TlsIdentityFiles
from dragoman_service.threads import NUM_EXTRA_THREADS, call_in_daemon, num_cores, shorten_slices, started_pool
from dragoman_service.translation.translator import Translator
from dragoman_service.vendor_apis.google import google_translation

log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 1.0
_MAX_FLUSH_S = 1.0  # for unsent traces


class FrontEnd:
    """The components of a front end. Call `start`, `drain` and `stop` in this order."""

    def __init__(self, owner: Owner, command: StartCommand, metrics: Metrics, calls: SharedCallCount) -> None:
        """Build all components within a running event loop without listening."""
        settings = self._settings = command.settings
        self._owner = owner
        self._metrics = metrics
        self._models = RemoteModels(owner)
        self._glossaries = GlossaryRepository(
            glossaries_directory(settings.models.glossaries_directory, settings.models.directory), metrics
        )
        access = RemoteAccess(
            owner,
            settings.access,
            metrics,
            asks_certificates=settings.tls.client_ca_file is not None,
            is_reachable_remotely=not is_loopback(settings.grpc.host),
        )
        translator = Translator(
            self._models,
            metrics=metrics,
            limits=settings.limits,
            defaults=settings.defaults,
            quota=access,
            glossaries=self._glossaries,
            submit=submit_remotely,
        )
        self._tracing = start_tracing(
            settings.tracing,
            clock=time.monotonic,
            count=lambda outcome, num_spans: metrics.trace_spans.labels(outcome).inc(num_spans),
        )
        backend = Backend(
            translator=translator, models=self._models, glossaries=self._glossaries, limits=settings.limits
        )
        self._grpc = GrpcServer(
            settings.grpc,
            backend=backend,
            metrics=metrics,
            access=access,
            tls=TlsIdentityFiles(settings.tls, metrics) if settings.tls.is_on else None,
            tracing=self._tracing,
            logs=settings.logs,
            clock=time.monotonic,
            extension=google_translation(settings.grpc, backend),
            calls=calls,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen when the models are known; ConfigError if the port is in use."""
        await asyncio.to_thread(self._glossaries.refresh)
        await self._models.are_published.wait()
        await self._grpc.open()
        await self._grpc.start()
        interval_s = self._settings.models.poll_interval_s
        watching = watch(self._glossaries.refresh, interval_s=interval_s)
        self._tasks = [asyncio.create_task(watching), asyncio.create_task(self._report())]
        self._owner.send(Listening())

    async def drain(self) -> None:
        """Reject new calls and answer the admitted ones, then report to the owner."""
        await self._grpc.close()
        is_drained = await self._grpc.wait_until_idle(self._settings.grpc.drain_timeout_s)
        self._send_metrics()
        self._owner.send(Drained(is_complete=is_drained))

    async def stop(self) -> None:
        """Stop all components; unanswered calls get an error."""
        for task in self._tasks:
            task.cancel()
        await self._grpc.stop()
        await call_in_daemon(partial(self._tracing.stop, _MAX_FLUSH_S), name="tracing-stop")

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            self._send_metrics()
            self._models.collect_unreleased()

    def _send_metrics(self) -> None:
        self._owner.send(MetricsReport(families=summable(self._metrics.registry)))


async def serve(end: socket.socket, call_count: int) -> None:
    """Serve until the owner closes the connection or exits."""
    owner = Owner()
    await owner.open(end)
    command = await owner.started
    log_stream = LogStream(sys.stderr.fileno(), max_delay_s=MAX_LOG_DELAY_S)
    configure_logs(command.settings.logs, stream=log_stream, front_end=command.index)
    shorten_slices()
    num_threads = max(1, num_cores() // command.settings.grpc.processes) + NUM_EXTRA_THREADS
    asyncio.get_running_loop().set_default_executor(started_pool(num_threads, name="text", is_awaited=False))
    metrics = Metrics(CollectorRegistry())
    ProcessCollector(registry=metrics.registry)
    GCCollector(registry=metrics.registry)
    log_stream.count_lost(metrics.lost_log_lines.inc)
    try:
        front_end = FrontEnd(owner, command, metrics, SharedCallCount(call_count, command.index))
        serving = asyncio.create_task(_serve_until_drained(owner, front_end))
        await asyncio.wait((serving, asyncio.ensure_future(owner.has_ended.wait())), return_when=FIRST_COMPLETED)
        if serving.done():
            serving.result()
    except DragomanError as error:
        owner.send(Failed(error=error))
        await owner.has_ended.wait()
        return
    await owner.has_ended.wait()
    serving.cancel()
    await front_end.stop()


async def _serve_until_drained(owner: Owner, front_end: FrontEnd) -> None:
    await front_end.start()
    gc.freeze()
    await owner.must_drain.wait()
    await front_end.drain()


def main() -> None:
    """Run the front-end process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the owner also receives them, and drains first
        signal.signal(number, signal.SIG_IGN)
    if sys.argv[3] != messages_digest():
        print("dragoman: front end: the installed service differs from the running one", file=sys.stderr)
        os._exit(1)
    try:
        asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
    finally:
        logging.shutdown()
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main()
