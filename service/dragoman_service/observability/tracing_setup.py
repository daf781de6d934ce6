"""Selection of the implementation of tracing; OpenTelemetry is imported only if tracing is on."""

from collections.abc import Callable

from dragoman_service.observability.tracing import Tracing, TracingSettings


def start_tracing(
    settings: TracingSettings, *, clock: Callable[[], float], count: Callable[[str, int], None]
) -> Tracing:
    """Return the configured tracing; `count` receives `exported` or `failed` and a number of spans."""
    if not settings.endpoint:
        return Tracing()
    from dragoman_service.observability.otlp import OtlpTracing  # noqa: PLC0415 - import OpenTelemetry only if tracing is on

    return OtlpTracing(settings, clock=clock, count=count)
