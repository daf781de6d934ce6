"""How the client connects: security, balancing over replicas, retries, keepalive, message size."""

import json
from dataclasses import dataclass, field
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb

RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
"""Statuses after which the same request may succeed. Translating has no side effects, so retrying is always safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """What a TLS connection needs; all PEM."""

    root_certificates: bytes | None = None
    """Whom to trust; None: the roots gRPC ships with."""

    private_key: bytes | None = None
    """With `certificate_chain`: who we are, if the server asks for it."""

    certificate_chain: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How gRPC tries again; the pushback of a server, if it sends one, replaces the wait, and can forbid to retry."""

    max_attempts: int = 4
    """Attempts of a call, the first included, 1 to 5 (the most gRPC makes); 1 disables retries."""

    initial_backoff_s: float = 0.2
    """About how long to wait before the second attempt; above 0."""

    max_backoff_s: float = 5.0
    """Longest wait before an attempt; above 0."""

    backoff_multiplier: float = 2.0
    """How much longer each wait is than the one before; above 0."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 5:
            raise ValueError(f"max_attempts is {self.max_attempts}, must be 1 to 5")
        for name in ("initial_backoff_s", "max_backoff_s", "backoff_multiplier"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """How to connect. Calls go round robin over all addresses the target resolves to."""

    tls: TlsSettings | None = None
    """None: no encryption."""

    retry: RetrySettings = field(default_factory=RetrySettings)

    is_waiting_for_ready: bool = False
    """Whether a call waits for a connection until its deadline. If not, it fails after `retry` with UNAVAILABLE."""

    keepalive_time_s: float = 60.0
    """Silence after which a connection with calls on it is pinged. A server may drop clients that ping more often."""

    keepalive_timeout_s: float = 20.0
    """Wait for the answer to a ping before the connection counts as lost."""

    max_message_bytes: int = 16 * 2**20
    """Largest request and response."""


def open_channel(target: str, settings: ChannelSettings, *, is_async: bool) -> Any:
    """Open a `grpc.aio.Channel` or a `grpc.Channel`; it connects with the first call.

    Args:
        target: `host:port` or another gRPC target, such as `dns:///dragoman.default.svc:50051`.
        settings: how to connect.
        is_async: which of the two.
    """
    api = grpc.aio if is_async else grpc
    options = channel_options(settings)
    if settings.tls is None:
        return api.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=settings.tls.root_certificates,
        private_key=settings.tls.private_key,
        certificate_chain=settings.tls.certificate_chain,
    )
    return api.secure_channel(target, credentials, options=options)


def channel_options(settings: ChannelSettings) -> list[tuple[str, int | str]]:
    """Return the settings as gRPC core knows them."""
    return [
        ("grpc.service_config", json.dumps(service_config(settings))),
        ("grpc.keepalive_time_ms", round(settings.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        # gRPC gives up retrying a call whose messages exceed this; its default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", settings.max_message_bytes),
    ]


def service_config(settings: ChannelSettings) -> dict[str, Any]:
    """Return the gRPC service config: https://github.com/grpc/grpc/blob/master/doc/service_config.md."""
    services = pb.DESCRIPTOR.services_by_name.values()
    method: dict[str, Any] = {
        "name": [{"service": service.full_name} for service in services],
        "waitForReady": settings.is_waiting_for_ready,
    }
    if settings.retry.max_attempts > 1:
        method["retryPolicy"] = _retry_policy(settings.retry)
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [method],
        # Many failures in a row stop retries until calls succeed again, so that an overloaded server can recover.
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }


def _retry_policy(retry: RetrySettings) -> dict[str, Any]:
    return {
        "maxAttempts": retry.max_attempts,
        "initialBackoff": f"{retry.initial_backoff_s:.3f}s",
        "maxBackoff": f"{retry.max_backoff_s:.3f}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": list(RETRYABLE_CODES),
    }
