"""Settings of tracing, and the selection of its implementation."""

import logging
import os
from collections.abc import Callable
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from dragoman_service.observability.usage import Tracing
from dragoman_service.toml import SettingsSection

log = logging.getLogger(__name__)

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class TracingSettings(SettingsSection):
    """Export of traces. Headers for the collector, such as an API key, are not settings."""

    endpoint: str = ""
    """URL of a collector for OTLP over gRPC: `http://host:4317`, or `https://` for TLS. Empty: no tracing. The
    environment variable `OTEL_EXPORTER_OTLP_HEADERS` sets headers for the collector."""

    sample_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of requests without `traceparent` that are traced. For the others, the caller decides."""

    service_name: str | None = Field(default=None, min_length=1, max_length=255)
    """Name of this service in traces. Unset: the environment variable `OTEL_SERVICE_NAME`, or `dragoman`."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str) -> str:
        if endpoint:
            url = urlsplit(endpoint)
            is_bare = not (url.username or url.password or url.query or url.fragment or url.path.strip("/"))
            if url.scheme not in {"http", "https"} or not url.hostname or not url.port or not is_bare:
                raise ValueError("http://HOST:PORT or https://HOST:PORT")
        return endpoint


def start_tracing(
    settings: TracingSettings, *, clock: Callable[[], float], count: Callable[[str, int], None]
) -> Tracing:
    """Return the configured tracing; `count` receives `exported` or `failed` and a number of spans."""
    if not settings.endpoint:
        for variable in filter(os.environ.get, _ENDPOINT_VARIABLES):
            log.warning("tracing is off", extra={"ignored_variable": variable, "setting": "tracing.endpoint"})
        return Tracing()
    from dragoman_service.observability.otlp import OtlpTracing  # noqa: PLC0415 - import OpenTelemetry only if tracing is on

    return OtlpTracing(**settings.model_dump(), clock=clock, count=count)
