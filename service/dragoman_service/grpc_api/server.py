"""The gRPC server: port, limits, reflection, health, and a shutdown that answers every admitted call."""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import grpc
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.errors import ConfigError, DrainingError
from dragoman_service.grpc_api.health import HEALTH_NAME, Health, OpenServicesInterceptor, add_reflection
from dragoman_service.grpc_api.interceptors import RequestInterceptor
from dragoman_service.grpc_api.servicer import ModelAdminServicer, ModelServicer, TranslationServicer
from dragoman_service.grpc_api.workarounds import Server
from dragoman_service.middleware.flow_control import ResourceLimits
from dragoman_service.middleware.pipeline import Backend, RequestPipeline
from dragoman_service.observability.logs import LogSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.tracing import Tracing
from dragoman_service.security.authentication import Access
from dragoman_service.security.rate_limits import ConcurrencyLimiter
from dragoman_service.security.settings import UNIX_SCHEME, GrpcSettings
from dragoman_service.security.tls import TlsIdentityFiles

_TRANSLATION_SERVICE: str = pb.DESCRIPTOR.services_by_name["TranslationService"].full_name

SERVICE_NAMES: tuple[str, ...] = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())
"""The services of ours; the others are health and reflection."""

_STOP_GRACE_S = 1.0
"""For answers that are being sent. Health watchers never end by themselves, so there is always a reason to wait."""

_NEVER_MS = 2**31 - 1
"""gRPC's largest integer, which it takes for infinity."""


_COUNT_EACH_S = 0.5


class DroppedCallCounter:
    """Counts calls that are over before the server saw them: reset by their callers, or cancelled by gRPC."""

    def __init__(self, num_seen: Callable[[], int], metrics: Metrics) -> None:
        """Count those of the gRPC server that was made last."""
        servers = json.loads(cygrpc.channelz_get_servers(0))["server"]
        self._server_id = max(int(server["ref"]["serverId"]) for server in servers)
        self._num_seen = num_seen
        self._counter = metrics.unseen_calls
        self._num_counted = 0

    async def watch(self) -> None:
        """Count for ever; a call that waits for longer than a look is counted, too, but not twice."""
        num_begun = 0
        while True:
            num_unseen = num_begun - self._num_seen()
            self._counter.inc(max(0, num_unseen - self._num_counted))
            self._num_counted = max(self._num_counted, num_unseen)
            data = json.loads(cygrpc.channelz_get_server(self._server_id))["server"]["data"]
            num_begun = int(data.get("callsStarted", 0))
            await asyncio.sleep(_COUNT_EACH_S)


class GrpcExtension(Protocol):
    """A service of somebody else's contract, whose methods are answered as methods of ours."""

    name: str
    """Full name of the service."""

    methods: Mapping[str, str]
    """Its paths, each with the path of the method that it counts as."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register its methods with a server, and describe the service for reflection."""


class GrpcServer:
    """Answers over gRPC; `stop` ends it.

    Translation is rejected until `open`, and again from `close` on; models are listed at any time.
    """

    def __init__(
        self,
        settings: GrpcSettings,
        *,
        backend: Backend,
        metrics: Metrics,
        access: Access,
        tls: TlsIdentityFiles | None,
        tracing: Tracing,
        logs: LogSettings,
        clock: Callable[[], float],
        further: GrpcExtension | None = None,
    ) -> None:
        """Build it within a running event loop; without `tls` it speaks plain text."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(is_worth_logging)
        self._settings = settings
        self._access = access
        self._tls = tls
        self._watches: list[asyncio.Task[None]] = []
        self._limiter = ConcurrencyLimiter(max_concurrent=settings.max_concurrent_requests, clock=clock)
        bounds = ResourceLimits(settings, metrics)
        self._health = Health(("", *SERVICE_NAMES), bounds)
        self.pipeline = RequestPipeline(
            limited_service=_TRANSLATION_SERVICE,
            limiter=self._limiter,
            bounds=bounds,
            metrics=metrics,
            access=access,
            tracing=tracing,
            logs=logs,
            clock=clock,
        )
        """What every request passes, those that come over HTTP included."""
        interceptor = RequestInterceptor(SERVICE_NAMES, self.pipeline, aliases=further.methods if further else None)
        interceptors = (interceptor, OpenServicesInterceptor(access, bounds))
        self._server = Server(interceptors, _options(settings))
        self._unseen = DroppedCallCounter(lambda: interceptor.num_calls, metrics)
        pb_grpc.add_TranslationServiceServicer_to_server(
            TranslationServicer(backend, max_stream_requests=settings.max_stream_requests), self._server
        )
        pb_grpc.add_ModelServiceServicer_to_server(ModelServicer(backend), self._server)
        pb_grpc.add_ModelAdminServiceServicer_to_server(ModelAdminServicer(backend), self._server)
        if further:
            further.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection(self._server, (*SERVICE_NAMES, HEALTH_NAME, *((further.name,) if further else ())))

    async def start(self) -> int:
        """Listen, still rejecting translations; return the bound port.

        Raises:
            ConfigError: if the address cannot be listened on.
        """
        address = _address(self._settings)
        try:
            port: int = (
                self._server.add_secure_port(address, self._tls.credentials())
                if self._tls
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise ConfigError("grpc.port", address, "an address that is free to listen on") from error
        await self._server.start()
        sources = (self._access, self._tls, self._unseen)
        self._watches = [asyncio.create_task(source.watch()) for source in sources if source]
        return port

    async def open(self) -> None:
        """Admit calls from now on."""
        self._limiter.open()
        self._health.set_serving(True)

    async def close(self) -> None:
        """Reject new calls; those under way go on."""
        self._limiter.close(DrainingError())
        self._health.set_serving(False)

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until every admitted call is answered; return False if time ran out first."""
        try:
            await asyncio.wait_for(self._limiter.wait_until_idle(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Close the port; cancel what is not done after a grace."""
        for watch in self._watches:
            watch.cancel()
        await self._server.stop(_STOP_GRACE_S)
        await self._access.close()


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Filter what gRPC logs as an error when a caller leaves while its answer is being sent, which is no fault."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"


def _address(settings: GrpcSettings) -> str:
    if settings.host.startswith(UNIX_SCHEME):
        return settings.host
    is_bare_ipv6 = ":" in settings.host and not settings.host.startswith("[")
    return f"[{settings.host}]:{settings.port}" if is_bare_ipv6 else f"{settings.host}:{settings.port}"


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    options = {
        "grpc.max_receive_message_length": settings.max_message_bytes,
        "grpc.so_reuseport": 0,  # a second server on the port must fail, not take half of the calls
        "grpc.max_metadata_size": settings.max_metadata_bytes,
        "grpc.absolute_max_metadata_size": settings.max_metadata_bytes,  # between the two, gRPC would reject at random
        "grpc.max_concurrent_streams": settings.max_connection_streams,
        # Calls that were reset wait, too; above the first of the two, gRPC would cancel calls of anybody at random.
        "grpc.server.max_pending_requests": settings.max_pending_calls,
        "grpc.server.max_pending_requests_hard_limit": settings.max_pending_calls,
        # It would let fast connections send megabytes to each call that nobody reads from yet, in place of 64 KiB.
        "grpc.http2.bdp_probe": 0,
        "grpc.max_allowed_incoming_connections": settings.max_connections,
        "grpc.max_connection_idle_ms": _milliseconds(settings.max_connection_idle_s) or _NEVER_MS,
        "grpc.server_handshake_timeout_ms": _milliseconds(settings.handshake_timeout_s),
        # Until a client acknowledges the settings, gRPC takes 16 MiB of metadata a call from it, for a minute or more.
        "grpc.http2.settings_timeout": _milliseconds(settings.handshake_timeout_s),
        "grpc.http2.min_ping_interval_without_data_ms": _milliseconds(settings.min_ping_interval_s),
        "grpc.keepalive_time_ms": _milliseconds(settings.keepalive_interval_s),
        "grpc.keepalive_timeout_ms": _milliseconds(settings.keepalive_timeout_s),
        "grpc.http2.ping_timeout_ms": _milliseconds(settings.keepalive_timeout_s),  # or it takes a minute
    }
    if settings.max_connection_age_s:
        options["grpc.max_connection_age_ms"] = round(settings.max_connection_age_s * 1000)
        longest_s = max(settings.max_timeout_s, settings.max_stream_timeout_s)
        options["grpc.max_connection_age_grace_ms"] = round(longest_s * 1000)
    return list(options.items())


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
