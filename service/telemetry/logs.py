"""Structured logs on standard error: JSON lines for machines, coloured lines for people.

Every record carries what is bound to its request (`structlog.contextvars`). Texts and tokens are not logged unless
`include_texts` says so, secrets never. So tracebacks come without local variables; those of a request, of asyncio and
of gRPC without the messages of exceptions too, as these may quote what a caller sent.
"""

import logging
import select
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from os import isatty, write
from typing import Final, Literal, Protocol

import structlog
from pydantic import BaseModel, ConfigDict
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 0.1
"""Time a slow reader gets, once: while lines are being lost, nobody waits any more."""


class LogStream:
    """Writes whole lines; any thread may, and none waits for a reader for long or fails."""

    def __init__(self, descriptor: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Write to an open file descriptor, which stays its owner's.

        Args:
            descriptor: of a file, a pipe, a socket or a terminal.
            patience_s: how long a line may wait for a reader who was in time so far.
        """
        self._descriptor = descriptor
        self._patience_ms = round(patience_s * 1000)
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lock = threading.RLock()  # a finalizer may log wherever memory is taken
        self._num_lost = 0  # since the last line that went out
        self._num_uncounted = 0
        self._count: Callable[[int], object] | None = None
        self._is_torn = False

    def count_lost(self, count: Callable[[int], object]) -> None:
        """Tell how many lines are lost from now on, and have been so far, to `count`."""
        with self._lock:
            self._count = count
            count(self._num_uncounted)
            self._num_uncounted = 0

    def write(self, text: str) -> int:
        """Write lines, each with its end, or lose them all; return the length of the text, written or not."""
        with self._lock:
            is_written = self._put(text.encode(errors="backslashreplace"))
            num_missing = self._num_lost if is_written else 0
            if is_written:
                self._num_lost = 0
            else:
                self._lose(text.count("\n"))
        if num_missing:
            log.warning("log lines were lost", lines=num_missing)
        return len(text)

    def flush(self) -> None:
        """Do nothing: no line is kept back."""

    def isatty(self) -> bool:
        """Whether people look at it."""
        return isatty(self._descriptor)

    def _put(self, lines: bytes) -> bool:
        """Write all of it; False if it does not go out."""
        left = memoryview(b"\n" + lines if self._is_torn else lines)
        try:
            while left and self._has_room():
                left = left[write(self._descriptor, left[: select.PIPE_BUF]) :]
                self._is_torn = bool(left)
        except OSError:  # no space, nobody at the other end, or a limit
            return False
        return not left

    def _has_room(self) -> bool:
        """Whether `PIPE_BUF` bytes can be written without waiting; a disk always says so."""
        return bool(self._room.poll(0 if self._num_lost else self._patience_ms))

    def _lose(self, num_lines: int) -> None:
        self._num_lost += num_lines
        if self._count is None:
            self._num_uncounted += num_lines
        else:
            self._count(num_lines)


_WITHHELD = "(message withheld: logs.include_texts is off)"
_LOGGERS_OF_REQUESTS = ("asyncio", "grpc")
"""Libraries that report whatever exception a request raised."""


class LogSettings(BaseModel):
    """How the server logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written: `debug`, `info`, `warning` or `error`."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json` lines, `console` for people, or `auto`: console on a terminal, JSON elsewhere."""

    include_texts: bool = False
    """Dangerous: write the texts of callers, their translations and the messages of unexpected errors, which may quote
    them, into the log. For a fault that cannot be found otherwise, and not with other people's texts."""


class LineStream(Protocol):
    """What lines are written to: a `LogStream`, or any text file."""

    def write(self, text: str, /) -> int:
        """Take a line, its end included."""

    def flush(self) -> None:
        """Keep nothing back."""

    def isatty(self) -> bool:
        """Whether people look at it."""


def configure_logs(settings: LogSettings, *, stream: LineStream) -> None:
    """Route structlog and the standard library's loggers to one handler on `stream`."""
    rendering = _rendering(settings, stream)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    withholding: list[Processor] = [] if settings.include_texts else [_withhold_texts]
    structlog.configure(  # straight to the stream: by way of the standard library a line takes twice as long
        processors=[*shared, *withholding, *rendering],
        logger_factory=lambda *name: _StreamLogger(stream, *name),
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *withholding, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)


class _StreamLogger:
    """Writes finished lines; what structlog calls a logger."""

    def __init__(self, stream: LineStream, name: str = "") -> None:
        self._stream = stream
        self.name = name

    def msg(self, line: str) -> None:
        """Write a line, as one piece: other threads write, too."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def _rendering(settings: LogSettings, stream: LineStream) -> list[Processor]:
    for_people = stream.isatty() if settings.format == "auto" else settings.format == "console"
    if for_people:
        return [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _withhold_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Take from a record what may quote a request: messages of exceptions, and what asyncio tells of its tasks."""
    is_of_library = str(event.get("logger", "")).partition(".")[0] in _LOGGERS_OF_REQUESTS
    if is_of_library:  # asyncio appends the arguments of callbacks and, on lines of their own, results of tasks
        event["event"] = str(event["event"]).partition("\n")[0].partition("(")[0]
    if is_of_library or "request_id" in event:
        exc_info = event.pop("exc_info", None)
        error = _error_of(exc_info)
        if error is not None:
            event["exception"] = "\n".join(_traceback_without_messages(error))
    return event


def _error_of(exc_info: "bool | BaseException | ExcInfo | None") -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case None | False:
            return None
    return sys.exc_info()[1]


def _traceback_without_messages(error: BaseException) -> Iterator[str]:
    """Yield what is known of an exception and those that led to it, the last one first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield f"{type(cause).__module__}.{type(cause).__qualname__}: {_WITHHELD}"
        yield from (line.rstrip("\n") for line in traceback.format_tb(cause.__traceback__))
        cause = cause.__cause__ or cause.__context__
