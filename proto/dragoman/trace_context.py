"""The trace that a call belongs to (W3C Trace Context), taken from OpenTelemetry if the process has it."""

import importlib
from collections.abc import Callable

Inject = Callable[[dict[str, str]], object]
"""Writes the current trace context into a carrier, as `opentelemetry.propagate.inject` does."""


def opentelemetry_inject() -> Inject | None:
    """Return OpenTelemetry's own injection; None where it is not installed."""
    try:
        module = importlib.import_module("opentelemetry.propagate")
    except ImportError:
        return None
    inject: Inject = module.inject
    return inject


def trace_metadata(inject: Inject | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that make the call a part of the running trace; none outside of one."""
    if inject is None:
        return ()
    carrier: dict[str, str] = {}
    inject(carrier)
    return tuple((name.lower(), value) for name, value in carrier.items())
