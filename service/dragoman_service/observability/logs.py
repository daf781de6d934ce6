"""Structured logs on standard error: JSON lines for machines, coloured lines for people.

All modules log by `logging`; structlog only formats. Every record has the values that are bound to its request
(`structlog.contextvars`). Texts and tokens are not logged unless `include_texts` is set, secrets never: tracebacks have
no local variables, and those of a request, of asyncio and of gRPC no messages of exceptions, which may quote a caller.
"""

import logging
import math
import select
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from os import isatty, write
from typing import Any, Final, Literal, TextIO

import structlog
from pydantic import BaseModel, ConfigDict, Field
from structlog.typing import EventDict, Processor, WrappedLogger

log = logging.getLogger(__name__)

_MAX_WAIT_S: Final = 0.1
"""For a slow reader, once: while lines are being lost, writing does not wait."""

_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Of a record without extras."""


class LogStream:
    """Writes whole lines from any thread; never waits long for a reader, and never fails."""

    def __init__(self, descriptor: int, *, max_wait_s: float = _MAX_WAIT_S) -> None:
        """Write to an open file descriptor, which is not closed; a line is lost after `max_wait_s` for a reader."""
        self._descriptor = descriptor
        self._max_wait_ms = round(max_wait_s * 1000)
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lock = threading.RLock()  # a finalizer may log wherever memory is taken
        self._num_lost = 0  # since the last line that went out
        self._num_uncounted = 0
        self._count: Callable[[int], object] | None = None
        self._is_torn = False

    def count_lost(self, count: Callable[[int], object]) -> None:
        """Call `count` with the number of lines lost so far, and again whenever lines are lost."""
        with self._lock:
            self._count = count
            count(self._num_uncounted)
            self._num_uncounted = 0

    def write(self, text: str) -> int:
        """Write lines, each with its end, or lose them all; return the length of the text in either case."""
        num_missing = 0
        with self._lock:
            if self._put(text.encode(errors="backslashreplace")):
                num_missing, self._num_lost = self._num_lost, 0
            else:
                self._lose(text.count("\n"))
        if num_missing:
            log.warning("log lines were lost", extra={"lines": num_missing})
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are not buffered."""

    def isatty(self) -> bool:
        """Whether this is a terminal."""
        return isatty(self._descriptor)

    def _put(self, lines: bytes) -> bool:
        """Write all of it; False if that is not possible."""
        left = memoryview(b"\n" + lines if self._is_torn else lines)
        try:
            while left and self._has_room():
                left = left[write(self._descriptor, left[: select.PIPE_BUF]) :]
                self._is_torn = bool(left)
        except OSError:  # no space, no reader, or a limit
            return False
        return not left

    def _has_room(self) -> bool:
        """Whether `PIPE_BUF` bytes can be written without waiting; always true for a disk."""
        return bool(self._room.poll(0 if self._num_lost else self._max_wait_ms))

    def _lose(self, num_lines: int) -> None:
        self._num_lost += num_lines
        if self._count is None:
            self._num_uncounted += num_lines
        else:
            self._count(num_lines)


_WITHHELD = "(message withheld: logs.include_texts is off)"
_LOGGERS_OF_REQUESTS = ("asyncio", "grpc")
"""Libraries that log exceptions of requests."""


class LogSettings(BaseModel):
    """How the server logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written: `debug`, `info`, `warning` or `error`."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json` lines, `console` for people, or `auto`: console on a terminal, JSON elsewhere."""

    max_failures_per_s: int = Field(default=20, ge=1, le=1_000_000)
    """Most lines each second for calls that were cancelled or failed for one reason, such as UNAUTHENTICATED; the
    number of the others is logged once a second, and `dragoman_requests_total` counts all. Answered calls are always
    logged."""

    include_texts: bool = False
    """Dangerous: log the texts of callers, their translations and the messages of unexpected errors, which may quote
    them. For an error that cannot be found otherwise, and not with other people's texts."""


class RepeatLimit:
    """Limits how many lines of one kind are logged each second, and tells how many were left out.

    A caller that is rejected ten thousand times a second must not fill a disk. For one thread.
    """

    def __init__(
        self,
        max_per_s: int,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Leave out nothing yet; `call_later(seconds, call)` is how the number is told when no further line comes."""
        self._max_per_s = max_per_s
        self._clock = clock
        self._call_later = call_later
        self._second = -math.inf  # when the current one began
        self._num_lines: Counter[str] = Counter()

    def allows(self, kind: str) -> bool:
        """Count a line; False if it is to be left out."""
        if self._clock() - self._second >= 1:
            self._tell()
            self._second = self._clock()
        self._num_lines[kind] += 1
        if self._num_lines[kind] == self._max_per_s + 1:
            self._call_later(1.0, self._tell)
        return self._num_lines[kind] <= self._max_per_s

    def _tell(self) -> None:
        for kind, num_lines in self._num_lines.items():
            if num_lines > self._max_per_s:
                log.warning("lines were left out", extra={"kind": kind, "lines": num_lines - self._max_per_s})
        self._num_lines.clear()


def configure_logs(settings: LogSettings, *, stream: LogStream | TextIO) -> None:
    """Write the records of all loggers to a stream."""
    is_for_people = stream.isatty() if settings.format == "auto" else settings.format == "console"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(settings, is_for_people=is_for_people, has_colors=stream.isatty()))
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)


class _Formatter(logging.Formatter):
    """Makes a line of a record, its extras, and what is bound to its request."""

    def __init__(self, settings: LogSettings, *, is_for_people: bool, has_colors: bool) -> None:
        super().__init__()
        add_time = structlog.processors.TimeStamper(fmt="iso", utc=True)
        self._processors: list[Processor] = [structlog.contextvars.merge_contextvars, add_time]
        if not settings.include_texts:
            self._processors.append(_withhold_texts)
        if is_for_people:
            self._render: Processor = structlog.dev.ConsoleRenderer(
                colors=has_colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )
        else:
            self._processors.append(structlog.processors.format_exc_info)
            self._render = structlog.processors.JSONRenderer(default=str)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        event: Any = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        event.update((key, value) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            event["exc_info"] = record.exc_info
        for processor in self._processors:
            event = processor(None, record.levelname, event)
        return str(self._render(None, record.levelname, event))


def _withhold_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remove from a record what may quote a request: messages of exceptions, and what asyncio says about its tasks."""
    is_of_library = str(event.get("logger", "")).partition(".")[0] in _LOGGERS_OF_REQUESTS
    if is_of_library:  # asyncio appends the arguments of callbacks and, on lines of their own, results of tasks
        event["event"] = str(event["event"]).partition("\n")[0].partition("(")[0]
    if is_of_library or "request_id" in event:
        _, error, _ = event.pop("exc_info", None) or (None, None, None)
        if error is not None:
            event["exception"] = "\n".join(_traceback_without_messages(error))
    return event


def _traceback_without_messages(error: BaseException) -> Iterator[str]:
    """Yield the traceback of an exception and of those that caused it, the last one first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield f"{type(cause).__module__}.{type(cause).__qualname__}: {_WITHHELD}"
        yield from (line.rstrip("\n") for line in traceback.format_tb(cause.__traceback__))
        cause = cause.__cause__ or cause.__context__
