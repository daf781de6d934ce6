"""The gRPC server: port, options of gRPC, and a shutdown that answers every admitted call."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls.flow_control import ConcurrencyLimiter, ResourceLimits
from dragoman_service.calls.handlers import Handlers
from dragoman_service.calls.pipeline import RequestPipeline
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import ConfigError
from dragoman_service.grpc_api.health import CONTROL_NAMES, ControlServices, Health
from dragoman_service.grpc_api.servicer import GrpcExtension, Servicer
from dragoman_service.grpc_api.workarounds import GRPC_LOGGER, DroppedCallCounter, Server, is_worth_logging
from dragoman_service.observability.logs import LogSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.usage import Tracing
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import UNIX_SCHEME, address_of
from dragoman_service.security.tls import TlsIdentityFiles

SERVICE_NAMES: tuple[str, ...] = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())
"""Services of the API, without health and reflection."""

_STOP_GRACE_S = 1.0  # for responses that are being sent; health watchers always use it up
_MAX_ACCEPT_S = 0.2  # at the beginning of a drain, for calls that gRPC has received
_NEVER_MS = 2**31 - 1  # infinity for gRPC


class GrpcServer:
    """Serves the API over gRPC. Translation is rejected before `open`; models are listed at any time."""

    def __init__(
        self,
        settings: GrpcSettings,
        *,
        handlers: Handlers,
        metrics: Metrics,
        access: Access,
        tls: TlsIdentityFiles | None,
        tracing: Tracing,
        logs: LogSettings,
        clock: Callable[[], float],
        extension: GrpcExtension | None = None,
    ) -> None:
        """Create the server within a running event loop; without `tls` connections are not encrypted."""
        logging.getLogger(GRPC_LOGGER).addFilter(is_worth_logging)
        self._settings = settings
        self._access = access
        self._tls = tls
        self._watches: list[asyncio.Task[None]] = []
        self._limiter = ConcurrencyLimiter(max_concurrent=settings.max_concurrent_requests, clock=clock)
        bounds = ResourceLimits(settings, metrics)
        names = (*SERVICE_NAMES, *((extension.name,) if extension else ()))
        self._health = Health(("", *names, *CONTROL_NAMES), bounds)
        self.pipeline = RequestPipeline(  # also for requests over HTTP
            limiter=self._limiter,
            bounds=bounds,
            metrics=metrics,
            access=access,
            tracing=tracing,
            logs=logs,
            clock=clock,
        )
        self._server = Server(_options(settings))
        self._dropped_calls = DroppedCallCounter(lambda: self._server.num_accepted, metrics)
        Servicer(handlers, self.pipeline).add_to(self._server, extension)
        ControlServices(self._health, access, bounds).add_to(self._server, names)

    async def start(self) -> int:
        """Listen, and return the bound port, 0 for a unix socket; translations are still rejected.

        Raises:
            ConfigError: if the address is not available.
        """
        address = _address(self._settings)
        is_socket = address.startswith(UNIX_SCHEME)
        if is_socket and _is_in_use(address):
            raise ConfigError("grpc.host", address, "a socket that no other server uses")
        try:
            port: int = (
                self._server.add_secure_port(address, self._tls.credentials())
                if self._tls
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise ConfigError("grpc.port", address, "an available address") from error
        await self._server.start()
        sources = (self._access, self._tls, self._dropped_calls)
        self._watches = [asyncio.create_task(source.watch()) for source in sources if source]
        return 0 if is_socket else port

    async def open(self) -> None:
        """Admit calls."""
        self._limiter.open()
        self._health.set_serving(True)

    async def drain(self) -> None:
        """Close the port and ask clients to connect to another server (GOAWAY); accepted calls continue."""
        self._server.accept_faster()
        await self._dropped_calls.wait_until_accepted(_MAX_ACCEPT_S)
        await self._server.close()
        self._limiter.drain()
        # Only now: clients that watch their connection must leave it before they learn that it has no server.
        self._health.set_serving(False)

    async def wait_until_answered(self) -> None:
        """Wait until every accepted call is answered."""
        await self._server.wait_until_answered()

    async def stop(self) -> None:
        """Close the port, and cancel unfinished calls after a grace period."""
        for watch in self._watches:
            watch.cancel()
        await self._server.stop(_STOP_GRACE_S)
        await self._access.close()


def _address(settings: GrpcSettings) -> str:
    if settings.host.startswith(UNIX_SCHEME):
        return settings.host
    return address_of(settings.host, settings.port)


def _is_in_use(address: str) -> bool:
    """Return whether a server listens on a unix socket, which gRPC would replace."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address.removeprefix(UNIX_SCHEME).removeprefix("//")) == 0


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    options = {
        "grpc.max_receive_message_length": settings.max_message_bytes,
        "grpc.so_reuseport": 0,  # a second server on the port must fail instead of sharing the calls
        "grpc.max_metadata_size": settings.max_metadata_bytes,
        "grpc.absolute_max_metadata_size": settings.max_metadata_bytes,  # between both, it rejects at random
        "grpc.max_concurrent_streams": settings.max_connection_streams,
        # Reset calls count; above the first limit, gRPC cancels calls of any caller at random.
        "grpc.server.max_pending_requests": settings.max_pending_calls,
        "grpc.server.max_pending_requests_hard_limit": settings.max_pending_calls,
        # With probes, a fast connection could send megabytes instead of 64 KiB to each call that is not read yet.
        "grpc.http2.bdp_probe": 0,
        "grpc.max_allowed_incoming_connections": settings.max_connections,
        "grpc.max_connection_idle_ms": _milliseconds(settings.max_connection_idle_s) or _NEVER_MS,
        "grpc.server_handshake_timeout_ms": _milliseconds(settings.handshake_timeout_s),
        # Until a client acknowledges the settings, gRPC accepts 16 MiB of metadata per call.
        "grpc.http2.settings_timeout": _milliseconds(settings.settings_timeout_s),
        "grpc.http2.min_ping_interval_without_data_ms": _milliseconds(settings.min_ping_interval_s),
        "grpc.keepalive_time_ms": _milliseconds(settings.keepalive_interval_s),
        "grpc.keepalive_timeout_ms": _milliseconds(settings.keepalive_timeout_s),
        "grpc.http2.ping_timeout_ms": _milliseconds(settings.keepalive_timeout_s),  # default: one minute
    }
    if settings.max_connection_age_s:
        options["grpc.max_connection_age_ms"] = round(settings.max_connection_age_s * 1000)
        longest_s = max(settings.max_timeout_s, settings.max_stream_timeout_s)
        options["grpc.max_connection_age_grace_ms"] = round(longest_s * 1000)
    return list(options.items())


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
