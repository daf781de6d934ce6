"""Capture of the log records of the service during a test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))


class _Handler(logging.Handler):
    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        extras = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
        if record.exc_info:
            extras["exc_info"] = record.exc_info[1]
        self._events.append({"event": record.getMessage(), "log_level": record.levelname.lower(), **extras})


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Yield a list that grows by one dictionary with each record of the service."""
    events: list[dict[str, Any]] = []
    logger, handler = logging.getLogger("dragoman_service"), _Handler(events)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield events
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
