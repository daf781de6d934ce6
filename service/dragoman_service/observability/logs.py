"""Structured logs on standard error: JSON lines, or coloured text on a terminal.

All modules use `logging`; structlog formats the records and adds the values that are bound to the request
(`structlog.contextvars`). Texts and tokens are logged only with `include_texts`, secrets never. Tracebacks contain no
local variables. Tracebacks of requests, asyncio and gRPC contain no exception messages, which may quote a caller.
"""

import json
import logging
import math
import select
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from os import isatty, write
from typing import Any, Final, Literal, TextIO

import structlog
from pydantic import Field
from structlog.typing import EventDict, Processor, WrappedLogger

from dragoman_service.toml import SettingsSection

log = logging.getLogger(__name__)

# Wait for a slow reader. After the first lost line, writing no longer waits until a line has been written.
_MAX_WAIT_S: Final = 0.1

_MAX_BUFFERED_BYTES: Final = 65_536

# Attributes of a record without extra fields.
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class LogStream:
    """Stream that writes whole lines, never blocks for long and never raises. Thread-safe."""

    def __init__(self, descriptor: int, *, max_wait_s: float = _MAX_WAIT_S, max_delay_s: float = 0.0) -> None:
        """Write to an open file descriptor, which is not closed; lines are dropped after waiting for `max_wait_s`.

        With `max_delay_s`, a thread writes the lines of this time together, unless `flush` is called or the buffer is
        full.
        """
        self._descriptor = descriptor
        self._max_wait_ms = round(max_wait_s * 1000)
        self._max_delay_s = max_delay_s
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lock = threading.RLock()  # of the buffer; reentrant: a finalizer may log during any allocation
        self._writing = threading.RLock()  # guards the writer; lock order: `_writing`, then `_lock`
        self._buffered: list[bytes] = []
        self._num_buffered = 0  # bytes
        self._has_lines = threading.Event()
        self._num_lost = 0  # since the last written line
        self._num_uncounted = 0
        self._count: Callable[[int], object] | None = None
        self._is_torn = False
        if max_delay_s:
            threading.Thread(target=self._write_buffered, name="log-writer", daemon=True).start()

    def count_lost(self, count: Callable[[int], object]) -> None:
        """Call `count` with the number of lines lost so far, and after each further loss with the new number."""
        with self._writing:
            self._count = count
            count(self._num_uncounted)
            self._num_uncounted = 0

    def write(self, text: str) -> int:
        """Write complete lines, or drop all of them; return the length of the text in both cases."""
        lines = text.encode(errors="backslashreplace")
        with self._lock:
            self._buffered.append(lines)
            self._num_buffered += len(lines)
            is_full = not self._max_delay_s or self._num_buffered >= _MAX_BUFFERED_BYTES
            if len(self._buffered) == 1:
                self._has_lines.set()
        if is_full:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write all buffered lines now."""
        num_missing = 0
        with self._writing:
            with self._lock:
                buffered, self._buffered, self._num_buffered = self._buffered, [], 0
            for lines in _grouped(buffered):
                if self._put(lines):
                    num_missing, self._num_lost = num_missing + self._num_lost, 0
                else:
                    self._lose(lines.count(b"\n"))
        if num_missing:
            log.warning("log lines lost", extra={"lines": num_missing})

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return isatty(self._descriptor)

    def _write_buffered(self) -> None:
        while self._has_lines.wait():
            time.sleep(self._max_delay_s)
            self._has_lines.clear()
            self.flush()

    def _put(self, lines: bytes) -> bool:
        # Returns False if not all lines could be written.
        remaining = memoryview(b"\n" + lines if self._is_torn else lines)
        try:
            while remaining and self._has_room():
                remaining = remaining[write(self._descriptor, remaining[: select.PIPE_BUF]) :]
                self._is_torn = bool(remaining)
        except OSError:  # disk full, closed pipe, or file size limit
            return False
        return not remaining

    def _has_room(self) -> bool:
        # True if `PIPE_BUF` bytes can be written without blocking; always true for a file.
        return bool(self._room.poll(0 if self._num_lost else self._max_wait_ms))

    def _lose(self, num_lines: int) -> None:
        self._num_lost += num_lines
        if self._count is None:
            self._num_uncounted += num_lines
        else:
            self._count(num_lines)


def _grouped(texts: Sequence[bytes]) -> Iterator[bytes]:
    # Joins texts that can be written by one call, which is all or nothing.
    group = b""
    for text in texts:
        if group and len(group) + len(text) > select.PIPE_BUF:
            yield group
            group = b""
        group += text
    if group:
        yield group


_WITHHELD = "(message withheld: logs.include_texts is off)"
_LOGGERS_OF_REQUESTS = ("asyncio", "grpc")  # libraries that log exceptions of requests


class LogSettings(SettingsSection):
    """Logging of the server."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level: `debug`, `info`, `warning` or `error`."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json`: JSON lines; `console`: text; `auto`: `console` on a terminal, else `json`."""

    max_failures_per_s: int = Field(default=20, ge=1, le=1_000_000)
    """Maximum number of log lines per second for failed or cancelled calls with the same status, for example
    UNAUTHENTICATED. The number of omitted lines is logged once per second; `dragoman_requests_total` counts all calls.
    Successful calls are always logged."""

    include_texts: bool = False
    """Dangerous: log the texts of callers, their translations, and the messages of unexpected errors, which may quote
    texts. Use it only with your own texts, to find an error that cannot be found otherwise."""


class RepeatLimit:
    """Rate limit of log lines of the same kind that also logs the number of omitted lines.

    It prevents a caller that is rejected thousands of times per second from filling the disk. Not thread-safe.
    """

    def __init__(
        self,
        max_per_s: int,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Create a limit; `call_later(seconds, call)` schedules the report if no further line follows."""
        self._max_per_s = max_per_s
        self._clock = clock
        self._call_later = call_later
        self._second = -math.inf  # start of the current second
        self._num_lines: Counter[str] = Counter()

    def allows(self, kind: str) -> bool:
        """Count a line and return whether to log it."""
        if self._clock() - self._second >= 1:
            self._report()
            self._second = self._clock()
        self._num_lines[kind] += 1
        if self._num_lines[kind] == self._max_per_s + 1:
            self._call_later(1.0, self._report)
        return self._num_lines[kind] <= self._max_per_s

    def _report(self) -> None:
        for kind, num_lines in self._num_lines.items():
            if num_lines > self._max_per_s:
                log.warning("log lines omitted", extra={"kind": kind, "lines": num_lines - self._max_per_s})
        self._num_lines.clear()


def configure_logs(settings: LogSettings, *, stream: LogStream | TextIO) -> None:
    """Send the records of all loggers to a stream."""
    is_console = stream.isatty() if settings.format == "auto" else settings.format == "console"
    # No format uses these fields, and collecting them takes time for each record.
    logging._srcfile, logging.logThreads, logging.logProcesses = None, False, False
    logging.logMultiprocessing = False
    handler = _Handler(stream)
    handler.setFormatter(_Formatter(settings, is_console=is_console, has_colors=stream.isatty()))
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)


class _Handler(logging.StreamHandler[LogStream | TextIO]):
    # Unlike the inherited handler, flushes warnings and errors only.

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + self.terminator)
            if record.levelno >= logging.WARNING:
                self.stream.flush()
        except Exception:  # noqa: BLE001 - logging must not fail
            self.handleError(record)


class _Formatter(logging.Formatter):
    # Formats a record with its extra fields and the values that are bound to its request.

    def __init__(self, settings: LogSettings, *, is_console: bool, has_colors: bool) -> None:
        super().__init__()
        add_time = structlog.processors.TimeStamper(fmt="iso", utc=True)
        self._processors: list[Processor] = [structlog.contextvars.merge_contextvars, add_time]
        if not settings.include_texts:
            self._processors.append(_withhold_texts)
        if is_console:
            self._render: Processor = structlog.dev.ConsoleRenderer(
                colors=has_colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )
        else:
            self._processors.append(structlog.processors.format_exc_info)
            encode = json.JSONEncoder(default=str).encode  # `json.dumps` would create one for each line
            self._render = structlog.processors.JSONRenderer(lambda event, **_: encode(event))

    def format(self, record: logging.LogRecord) -> str:
        event: Any = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        event.update((key, value) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            event["exc_info"] = record.exc_info
        for processor in self._processors:
            event = processor(None, record.levelname, event)
        return str(self._render(None, record.levelname, event))


def _withhold_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    # Removes exception messages and asyncio task descriptions, which may quote a request.
    is_of_library = str(event.get("logger", "")).partition(".")[0] in _LOGGERS_OF_REQUESTS
    if is_of_library:  # asyncio appends callback arguments and, on separate lines, task results
        event["event"] = str(event["event"]).partition("\n")[0].partition("(")[0]
    if is_of_library or "request_id" in event:
        _, error, _ = event.pop("exc_info", None) or (None, None, None)
        if error is not None:
            event["exception"] = "\n".join(_traceback_without_messages(error))
    return event


def _traceback_without_messages(error: BaseException) -> Iterator[str]:
    # Yields the tracebacks of an exception and of its causes, the last exception first.
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield f"{type(cause).__module__}.{type(cause).__qualname__}: {_WITHHELD}"
        yield from (line.rstrip("\n") for line in traceback.format_tb(cause.__traceback__))
        cause = cause.__cause__ or cause.__context__
