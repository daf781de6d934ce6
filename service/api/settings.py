"""The settings of the gRPC server."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GrpcSettings(BaseModel):
    """Where the server listens and what it takes from one call."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all IPv4 interfaces, `::` for IPv6 too."""

    port: int = Field(default=50051, ge=0, le=65535)
    """TCP port; 0 takes a free one."""

    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=2**31 - 1)
    """Largest request; a larger one is refused with RESOURCE_EXHAUSTED before it is parsed."""

    max_concurrent_requests: int = Field(default=1024, ge=1)
    """Translations answered at a time; one more is refused with RESOURCE_EXHAUSTED instead of waiting."""

    default_timeout_s: float = Field(default=30.0, gt=0)
    """Time allowed to a call that comes without a deadline."""

    max_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time allowed to a call, whatever its deadline."""

    max_connection_age_s: float = Field(default=0.0, ge=0)
    """A connection older than this is closed after its calls, so that clients spread over new replicas; 0: never."""

    drain_timeout_s: float = Field(default=30.0, ge=0)
    """After SIGTERM, longest wait for the answers to admitted requests."""

    @model_validator(mode="after")
    def _default_within_maximum(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s at most max_timeout_s ({self.max_timeout_s:g})")
        return self
