"""How the client connects: balancing over replicas, retries, keepalive, message size."""

import enum
import json
from dataclasses import dataclass, field
from typing import Any

import grpc

from dragoman.client.credentials import TlsOptions, is_local
from dragoman.v1 import translation_pb2 as pb

RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")
"""Statuses after which the same request may succeed. Translating has no side effects, so retrying is always safe.

CANCELLED is among them because gRPC's server answers so a call that arrives at the moment in which it closes its port
(grpc/grpc#41785). A call that its own caller cancels is not repeated: it ends before any status can arrive.
"""

_ADMIN_SERVICE = "ModelAdminService"


class Balancing(enum.Enum):
    """Which of the addresses of a target gets the next call."""

    ROUND_ROBIN = "round_robin"
    """Each in turn, as far as they can be reached."""

    PICK_FIRST = "pick_first"
    """The first that can be reached, as long as it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How gRPC tries again; the pushback of a server, if it sends one, replaces the wait, and can forbid to retry.

    No wait outlasts the deadline of the call. After many failures in a row calls are no longer repeated, until others
    have succeeded. Requests to change models are never repeated.
    """

    max_attempts: int = 4
    """Attempts of a call, the first included, 1 to 5 (the most gRPC makes); 1 disables retries."""

    initial_backoff_s: float = 0.2
    """About how long to wait before the second attempt, 0.01 to 3,600."""

    max_backoff_s: float = 5.0
    """Longest wait before an attempt, unless the server asks for a longer one, 0.01 to 3,600."""

    backoff_multiplier: float = 2.0
    """How much longer each wait is than the one before, 1 to 100."""

    def __post_init__(self) -> None:
        _check_range(self, "max_attempts", 1, 5)
        # gRPC makes up to a fifth less of a wait, in whole milliseconds, and never ends one of 0 ms.
        _check_range(self, "initial_backoff_s", 0.01, 3600)
        _check_range(self, "max_backoff_s", 0.01, 3600)
        _check_range(self, "backoff_multiplier", 1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """How to connect. Calls go round robin over all addresses the target resolves to."""

    retry: RetrySettings = field(default_factory=RetrySettings)

    is_waiting_for_ready: bool = False
    """Whether a call waits for a connection until its deadline. If not, it fails after `retry` with UNAVAILABLE."""

    keepalive_time_s: float = 60.0
    """Silence after which a connection with calls on it is pinged, 10 to 7,200; servers drop who pings more often."""

    keepalive_timeout_s: float = 20.0
    """Wait for the answer to a ping before the connection counts as lost, 1 to 600."""

    max_request_bytes: int = 4 * 2**20
    """Largest request, 1 to 2**31 - 1; a larger one fails at once. As it ships, the server takes no more either."""

    max_response_bytes: int = 16 * 2**20
    """Largest response, 1 to 2**31 - 1."""

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
        is_async: which of the two.
        tls: None: no encryption.
        balancing: over the addresses of the target.

    Raises:
        OSError: if a file of `tls` cannot be read.
        ValueError: if one of them is not PEM.
    """
    api = grpc.aio if is_async else grpc
    options = channel_options(settings, balancing)
    if is_local(target):
        options.append(("grpc.enable_http_proxy", 0))  # the one of the environment does not reach this machine
    if tls is None:
        return api.insecure_channel(target, options=options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return api.secure_channel(target, tls.credentials(), options=options)


def channel_options(
    settings: ChannelSettings, balancing: Balancing = Balancing.ROUND_ROBIN
) -> list[tuple[str, int | str]]:
    """Return the settings as gRPC core knows them."""
    return [
        ("grpc.service_config", json.dumps(service_config(settings, balancing))),
        ("grpc.keepalive_time_ms", round(settings.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.max_send_message_length", settings.max_request_bytes),
        ("grpc.max_receive_message_length", settings.max_response_bytes),
        # gRPC gives up retrying a call whose messages exceed this; its default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", settings.max_request_bytes),
    ]


def service_config(settings: ChannelSettings, balancing: Balancing = Balancing.ROUND_ROBIN) -> dict[str, Any]:
    """Return the gRPC service config: https://github.com/grpc/grpc/blob/master/doc/service_config.md."""
    services = pb.DESCRIPTOR.services_by_name
    repeatable = [service.full_name for name, service in services.items() if name != _ADMIN_SERVICE]
    method = _method_config(settings, *repeatable)
    if settings.retry.max_attempts > 1:
        method["retryPolicy"] = _retry_policy(settings.retry)
    return {
        "loadBalancingConfig": [{balancing.value: {}}],
        # A repeated request to change models could reach another replica than the first.
        "methodConfig": [method, _method_config(settings, services[_ADMIN_SERVICE].full_name)],
        # Many failures in a row stop retries until calls succeed again, so that an overloaded server can recover.
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }


def _check_range(settings: object, name: str, low: float, high: float) -> None:
    value = getattr(settings, name)
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, must be {low} to {high}")


def _method_config(settings: ChannelSettings, *services: str) -> dict[str, Any]:
    return {"name": [{"service": name} for name in services], "waitForReady": settings.is_waiting_for_ready}


def _retry_policy(retry: RetrySettings) -> dict[str, Any]:
    return {
        "maxAttempts": retry.max_attempts,
        "initialBackoff": f"{retry.initial_backoff_s:.3f}s",
        "maxBackoff": f"{retry.max_backoff_s:.3f}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": list(RETRYABLE_CODES),
    }
