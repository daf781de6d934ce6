"""Settings of the gRPC port, and limits on calls of all transports."""

from typing import Self

from pydantic import Field, model_validator

from dragoman_service.toml import SettingsSection


class GrpcSettings(SettingsSection):
    """Address of the gRPC server, and limits on calls of all transports."""

    host: str = "127.0.0.1"
    """Address to listen on: `0.0.0.0` for all IPv4 interfaces, `::` for IPv4 and IPv6, `unix:/PATH` for a socket. An
    address other than loopback requires `access.callers_file`, `access.jwks`, `tls.client_ca_file`, or a setting of
    `access` that allows calls without credentials."""

    port: int = Field(default=50051, ge=0, le=65535)
    """TCP port; 0 selects a free port."""

    google_translation: bool = False
    """Serve the API of Google Cloud Translation: version 3 over gRPC and, if the HTTP API is on, versions 3 and 2 over
    HTTP. Requires the extra `google`."""

    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=2**31 - 1)
    """Largest request. A larger request is rejected with RESOURCE_EXHAUSTED before it is parsed."""

    max_control_message_bytes: int = Field(default=64 * 1024, ge=1024, le=2**31 - 1)
    """Largest message to services other than TranslationService. A larger message is rejected with INVALID_ARGUMENT."""

    max_received_bytes: int = Field(default=256 * 1024 * 1024, ge=4096)
    """Memory for messages of all connections. One half is for messages being received, each counted as
    `max_message_bytes`; further messages wait. The other half is for messages being answered; further messages are
    rejected with RESOURCE_EXHAUSTED."""

    message_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time between the headers and the message of a call. Then the call fails with DEADLINE_EXCEEDED."""

    max_metadata_bytes: int = Field(default=16 * 1024, ge=1024, le=1024 * 1024)
    """Largest metadata of a call, plus 32 bytes for each entry. A call with more is rejected with
    RESOURCE_EXHAUSTED."""

    max_connections: int = Field(default=1024, ge=1, le=1_000_000)
    """Maximum open connections. Further connections are closed at once."""

    max_connection_streams: int = Field(default=100, ge=1, le=1_000_000)
    """Maximum concurrent calls of one connection. gRPC clients queue further calls."""

    max_pending_calls: int = Field(default=16_384, ge=1, le=1_000_000)
    """Calls that gRPC queues before the server accepts them, including calls that their callers have reset. Beyond this
    limit gRPC cancels calls of any caller. Use at least `max_connection_streams` for each connection of a hostile
    caller."""

    max_connection_idle_s: float = Field(default=1800.0, ge=0, le=2_000_000)
    """Time without calls after which a connection is closed; 0: never."""

    handshake_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time until a new connection can carry calls, including the TLS handshake."""

    settings_timeout_s: float = Field(default=1.0, gt=0, le=3600)
    """Longest time until a client acknowledges the HTTP/2 settings. Until then `max_metadata_bytes` does not hold, and
    each connection can occupy about 20 MB."""

    min_ping_interval_s: float = Field(default=5.0, ge=0, le=86400)
    """Shortest interval between pings of a client. A client that pings more often is disconnected."""

    keepalive_interval_s: float = Field(default=120.0, ge=0.1, le=86400)
    """Time without traffic after which a connection with open calls is pinged."""

    keepalive_timeout_s: float = Field(default=20.0, ge=0.1, le=3600)
    """Longest wait for the answer to such a ping. Then the connection is closed and its calls are cancelled."""

    max_concurrent_requests: int = Field(default=1024, ge=1, le=1_000_000)
    """Maximum concurrent translations. An open stream counts as one, and so does each of its requests. Further requests
    are rejected with RESOURCE_EXHAUSTED."""

    max_streams: int = Field(default=256, ge=1, le=1_000_000)
    """Maximum concurrent documents, request streams and reflection calls. Further streams are rejected with
    RESOURCE_EXHAUSTED. Each request stream can receive a message of `max_message_bytes` in addition to
    `max_received_bytes`."""

    max_caller_share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of one caller (API key or host) in `max_streams`, in `max_received_bytes`, and in
    `max_concurrent_requests` for calls whose message is being received; 1: no limit."""

    stream_idle_timeout_s: float = Field(default=300.0, gt=0, le=86400)
    """Longest time in which a stream neither sends a request while none is being answered nor reads a response. Then it
    fails with DEADLINE_EXCEEDED."""

    max_watchers: int = Field(default=256, ge=1, le=1_000_000)
    """Maximum concurrent calls of Health/Watch. Further calls get UNIMPLEMENTED, which turns off the health checks of a
    client and nothing else."""

    max_peer_watchers: int = Field(default=32, ge=1, le=1_000_000)
    """Maximum concurrent calls of Health/Watch from one host."""

    default_timeout_s: float = Field(default=30.0, gt=0, le=86400)
    """Time limit of a call without a deadline."""

    max_timeout_s: float = Field(default=300.0, gt=0, le=86400)
    """Longest time limit of a call with a deadline."""

    default_stream_timeout_s: float = Field(default=600.0, gt=0, le=86400)
    """Time limit of a document or request stream without a deadline."""

    max_stream_timeout_s: float = Field(default=7200.0, gt=0, le=86400)
    """Longest time limit of a document or request stream with a deadline."""

    max_stream_requests: int = Field(default=32, ge=1, le=1024)
    """Maximum concurrent requests of one TranslateStream. The server reads further requests when one is answered."""

    max_connection_age_s: float = Field(default=0.0, ge=0, le=2_000_000)
    """Age at which a connection is closed after its open calls, so that clients spread over new replicas; 0: never."""

    drain_timeout_s: float = Field(default=30.0, ge=0, le=86400)
    """Longest time to answer accepted requests after SIGTERM."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s at most max_timeout_s ({self.max_timeout_s:g})")
        if self.default_stream_timeout_s > self.max_stream_timeout_s:
            raise ValueError(f"default_stream_timeout_s at most max_stream_timeout_s ({self.max_stream_timeout_s:g})")
        if self.max_received_bytes * self.max_caller_share < 2 * self.max_message_bytes:
            raise ValueError(f"max_received_bytes times max_caller_share at least twice {self.max_message_bytes} bytes")
        return self
