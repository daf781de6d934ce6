"""Structured logs on standard error: JSON lines for machines, coloured lines for people.

Every record carries what is bound to its request (`structlog.contextvars`). Texts, tokens and secrets are never
logged; tracebacks come without local variables, which would hold them.
"""

import logging
import sys
from typing import Literal, TextIO

import structlog
from pydantic import BaseModel, ConfigDict
from structlog.typing import Processor


class LogSettings(BaseModel):
    """How the server logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written: `debug`, `info`, `warning` or `error`."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json` lines, `console` for people, or `auto`: console on a terminal, JSON elsewhere."""


def configure_logs(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's loggers to one handler on `stream` (default: standard error)."""
    stream = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(settings, stream)],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)


def _rendering(settings: LogSettings, stream: TextIO) -> list[Processor]:
    for_people = stream.isatty() if settings.format == "auto" else settings.format == "console"
    if for_people:
        return [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
