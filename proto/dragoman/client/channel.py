"""Channels: load balancing, retries, keepalive and message sizes."""

import enum
import json
from dataclasses import dataclass, field
from typing import Any

import grpc

from dragoman.client.credentials import TlsOptions, is_local
from dragoman.v1 import translation_pb2 as pb

RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")
"""Statuses after which the same request may succeed. Translation has no side effects, therefore retries are safe.

CANCELLED is included because a gRPC server sends it for a call that arrives while the server closes its port
(grpc/grpc#41785). A call that the caller cancels is not retried: it ends before a status can arrive.
"""

_ADMIN_SERVICE = "ModelAdminService"


class Balancing(enum.Enum):
    """Load balancing over the addresses of a target."""

    ROUND_ROBIN = "round_robin"  # all reachable addresses in turn
    PICK_FIRST = "pick_first"  # the first reachable address, until it becomes unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Retries by gRPC. The pushback of a server replaces the backoff and can forbid a retry.

    A backoff ends with the deadline of the call. After many consecutive failures, calls are not retried until others
    succeed. Calls that change models are never retried.
    """

    max_attempts: int = 4
    """Attempts of a call, including the first, 1 to 5 (maximum of gRPC); 1 disables retries."""

    initial_backoff_s: float = 0.2
    """Approximate wait before the second attempt, 0.01 to 3,600."""

    max_backoff_s: float = 5.0
    """Maximum wait before an attempt, unless the server requests a longer one, 0.01 to 3,600."""

    backoff_multiplier: float = 2.0
    """Factor between consecutive waits, 1 to 100."""

    def __post_init__(self) -> None:
        _check_range(self, "max_attempts", 1, 5)
        # gRPC shortens a wait by up to 20 % and rounds to milliseconds; a wait of 0 ms never ends.
        _check_range(self, "initial_backoff_s", 0.01, 3600)
        _check_range(self, "max_backoff_s", 0.01, 3600)
        _check_range(self, "backoff_multiplier", 1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """Connection settings. Calls are balanced over all addresses of the target."""

    retry: RetrySettings = field(default_factory=RetrySettings)

    is_waiting_for_ready: bool = False
    """True: calls wait for a connection until their deadline. False: they fail after `retry` with UNAVAILABLE."""

    keepalive_time_s: float = 10.0
    """Idle time after which a connection with calls is pinged, 10 to 7,200; servers reject more frequent pings."""

    keepalive_timeout_s: float = 20.0
    """Timeout of a ping, after which the connection counts as lost, 1 to 600."""

    max_request_bytes: int = 4 * 2**20
    """Maximum size of a request, 1 to 2**31 - 1; the default is also that of the server."""

    max_response_bytes: int = 16 * 2**20
    """Maximum size of a response, 1 to 2**31 - 1."""

    def __post_init__(self) -> None:
        _check_range(self, "keepalive_time_s", 10, 7200)
        _check_range(self, "keepalive_timeout_s", 1, 600)
        _check_range(self, "max_request_bytes", 1, 2**31 - 1)
        _check_range(self, "max_response_bytes", 1, 2**31 - 1)


def open_channel(
    target: str, settings: ChannelSettings, *, is_async: bool, tls: TlsOptions | None, balancing: Balancing
) -> Any:
    """Open a `grpc.aio.Channel` or a `grpc.Channel`; it connects with the first call.

    Args:
        target: `host:port` or another gRPC target, such as `dns:///dragoman.default.svc:50051`.
        settings: how to connect.
        is_async: selects `grpc.aio.Channel`.
        tls: None: no encryption.
        balancing: load balancing over the addresses of the target.

    Raises:
        OSError: if a file of `tls` cannot be read.
        ValueError: if a file of `tls` is not PEM.
    """
    api = grpc.aio if is_async else grpc
    options = channel_options(settings, balancing)
    if is_local(target):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach this machine
    if tls is None:
        return api.insecure_channel(target, options=options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return api.secure_channel(target, tls.credentials(), options=options)


def channel_options(
    settings: ChannelSettings, balancing: Balancing = Balancing.ROUND_ROBIN
) -> list[tuple[str, int | str]]:
    """Return the settings as options of gRPC core."""
    return [
        ("grpc.service_config", json.dumps(service_config(settings, balancing))),
        ("grpc.keepalive_time_ms", round(settings.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        # An unanswered ping that measures the bandwidth delays the ping of keepalive; its default timeout is 60 s.
        ("grpc.http2.ping_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),  # default: one ping a minute after two pings without data
        ("grpc.max_send_message_length", settings.max_request_bytes),
        ("grpc.max_receive_message_length", settings.max_response_bytes),
        # gRPC does not retry calls whose messages exceed this size; its default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", settings.max_request_bytes),
    ]


def service_config(settings: ChannelSettings, balancing: Balancing = Balancing.ROUND_ROBIN) -> dict[str, Any]:
    """Return the gRPC service config: https://github.com/grpc/grpc/blob/master/doc/service_config.md."""
    methods = []
    for name, service in pb.DESCRIPTOR.services_by_name.items():
        method = {"name": [{"service": service.full_name}], "waitForReady": settings.is_waiting_for_ready}
        # A retry of a call that changes models could reach another replica.
        if settings.retry.max_attempts > 1 and name != _ADMIN_SERVICE:
            method["retryPolicy"] = _retry_policy(settings.retry)
        methods.append(method)
    return {
        "loadBalancingConfig": [{balancing.value: {}}],
        "methodConfig": methods,
        # Consecutive failures suspend retries until calls succeed, so that an overloaded server can recover.
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }


def _check_range(settings: object, name: str, low: float, high: float) -> None:
    value = getattr(settings, name)
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, must be {low} to {high}")


def _retry_policy(retry: RetrySettings) -> dict[str, Any]:
    return {
        "maxAttempts": retry.max_attempts,
        "initialBackoff": f"{retry.initial_backoff_s:.3f}s",
        "maxBackoff": f"{retry.max_backoff_s:.3f}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": list(RETRYABLE_CODES),
    }
