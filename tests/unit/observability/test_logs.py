import asyncio
import fcntl
import io
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from dragoman_service.observability.logs import LogSettings, LogStream, RepeatLimit, configure_logs
from tests.captured_logs import capture_logs
from tests.fakes import ManualClock

PIPE_BYTES = 4096  # the smallest there is
LINE = "x" * 99 + "\n"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def records(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_record_is_a_json_line_with_its_fields_and_those_of_its_request(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r1")

    logging.getLogger("a").info("ready", extra={"port": 1})
    logging.getLogger("b").warning("failed")

    first, second = records(stream)
    assert str(first.pop("timestamp")).endswith("Z")
    assert first == {"event": "ready", "level": "info", "logger": "a", "port": 1, "request_id": "r1"}
    assert (second["level"], second["request_id"]) == ("warning", "r1")


def test_a_record_below_the_level_is_not_written(stream: io.StringIO) -> None:
    configure_logs(LogSettings(level="warning"), stream=stream)

    logging.getLogger("a").info("ready")

    assert stream.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_does_not_show_local_variables(stream: io.StringIO, log_format: Literal["json", "console"]) -> None:
    configure_logs(LogSettings(format=log_format), stream=stream)

    def fail(text: str) -> None:
        raise ValueError(len(text))

    try:
        fail("a secret " * 2)
    except ValueError:
        logging.getLogger("a").exception("failed")

    assert "ValueError: 18" in stream.getvalue()
    assert "a secret a secret" not in stream.getvalue()


def test_console_format_is_text(stream: io.StringIO) -> None:
    configure_logs(LogSettings(format="console"), stream=stream)

    logging.getLogger("a").info("ready", extra={"port": 1})

    assert "ready" in stream.getvalue()
    assert "port=1" in stream.getvalue()


PRIVATE = " ".join(("what", "a", "caller", "sent"))  # so that no line of code, which tracebacks quote, holds it


def fail_with_a_chain(text: str) -> None:
    try:
        int(text)
    except ValueError as error:
        raise RuntimeError(f"could not do {text}") from error


@pytest.mark.parametrize(
    ("logger", "is_request", "include_texts", "is_withheld"),
    [
        ("service.a", True, False, True),
        ("service.a", True, True, False),
        ("service.a", False, False, False),
        ("asyncio", False, False, True),
        ("grpc", False, False, True),
        ("grpc._cython.cygrpc", False, False, True),
    ],
)
def test_exception_messages_of_requests_are_withheld(
    stream: io.StringIO, logger: str, is_request: bool, include_texts: bool, is_withheld: bool
) -> None:
    configure_logs(LogSettings(include_texts=True) if include_texts else LogSettings(), stream=stream)
    if is_request:
        structlog.contextvars.bind_contextvars(request_id="r1")

    try:
        fail_with_a_chain(PRIVATE)
    except RuntimeError:
        logging.getLogger(logger).exception("failed")

    (record,) = records(stream)
    exception = str(record["exception"])
    assert "fail_with_a_chain" in exception
    assert (f"could not do {PRIVATE}" in exception) is not is_withheld
    assert (f"literal for int() with base 10: {PRIVATE!r}" in exception) is not is_withheld
    if is_withheld:
        assert exception.index("builtins.RuntimeError: (message withheld") < exception.index("builtins.ValueError: (m")
        assert PRIVATE not in stream.getvalue()


async def test_exception_of_unawaited_task_is_withheld(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    loop = asyncio.get_running_loop()

    loop.call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": ValueError(PRIVATE), "task": PRIVATE}
    )
    loop.call_exception_handler({"message": f"Exception in callback deliver({PRIVATE!r}) at app.py:1"})

    assert [record["event"] for record in records(stream)] == [
        "Task exception was never retrieved",
        "Exception in callback deliver",
    ]
    assert PRIVATE not in stream.getvalue()


def test_exceptions_with_circular_causes_are_logged_once(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first

    logging.getLogger("asyncio").error("failed", exc_info=first)

    (record,) = records(stream)
    assert str(record["exception"]).count("ValueError") == 2


@dataclass
class Pipe:
    reader: int
    writer: int

    def read(self) -> str:
        """Return the content of the pipe, which must not be empty."""
        return os.read(self.reader, 1 << 20).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Pipe of the minimum size, without a reader."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield Pipe(reader, writer)
    for descriptor in (reader, writer):
        os.close(descriptor)


@pytest.fixture
def messages() -> Iterator[list[dict[str, Any]]]:
    """Records that the stream itself logs."""
    with capture_logs() as records:
        yield records


def lost(messages: list[dict[str, Any]]) -> list[int]:
    """Return the number of lost lines of each log event."""
    return [record["lines"] for record in messages if record["event"] == "log lines lost"]


def test_lines_are_written_unchanged(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = LogStream(file.fileno())

        assert stream.write("eine Zeile\n") == len("eine Zeile\n")
        stream.write("zwei \udc80\n" + "x" * 10_000 + "\n")

    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert text == "eine Zeile\nzwei \\udc80\n" + "x" * 10_000 + "\n"


def test_lines_lost_on_full_disk_are_counted() -> None:
    counted: list[int] = []
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        stream = LogStream(descriptor)
        stream.write(LINE)
        stream.count_lost(counted.append)
        stream.write(LINE * 2)
    finally:
        os.close(descriptor)

    assert counted == [1, 2]


def test_lines_lost_on_full_pipe_are_logged_after_it_is_read(pipe: Pipe, messages: list[dict[str, Any]]) -> None:
    counted: list[int] = []
    stream = LogStream(pipe.writer, max_wait_s=0)
    stream.count_lost(counted.append)
    for _ in range(100):
        stream.write(LINE)
    written = pipe.read()

    stream.write("after\n")

    assert len(written) + sum(counted) * len(LINE) == 100 * len(LINE)
    assert sum(counted) > 0
    assert pipe.read() == "after\n"
    assert lost(messages) == [sum(counted)]


def test_no_line_is_lost_with_a_fast_reader(pipe: Pipe, messages: list[dict[str, Any]]) -> None:
    stream = LogStream(pipe.writer, max_wait_s=60)
    lines = [f"{number:04}" + LINE for number in range(200)]
    read: list[str] = []

    def drain() -> None:
        while sum(map(len, read)) < sum(map(len, lines)):
            read.append(pipe.read())

    reader = threading.Thread(target=drain)
    reader.start()
    for line in lines:
        stream.write(line)
    reader.join(timeout=60)

    assert "".join(read) == "".join(lines)
    assert lost(messages) == []


def test_line_after_a_truncated_line_starts_on_a_new_line(pipe: Pipe, messages: list[dict[str, Any]]) -> None:
    stream = LogStream(pipe.writer, max_wait_s=0)
    stream.write("y" * 3 * PIPE_BYTES + "\n")
    torn = pipe.read()

    stream.write("whole\n")

    assert set(torn) == {"y"}
    assert pipe.read() == "\nwhole\n"
    assert lost(messages) == [1]


def test_closed_pipe_does_not_fail_the_writer(pipe: Pipe) -> None:
    counted: list[int] = []
    stream = LogStream(pipe.writer)
    stream.count_lost(counted.append)
    os.close(pipe.reader)

    stream.write(LINE)

    assert counted == [0, 1]
    pipe.reader = os.open("/dev/null", os.O_RDONLY)  # for the fixture


def test_concurrent_threads_write_whole_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = LogStream(file.fileno())

        def talk(name: str) -> None:
            for _ in range(200):
                stream.write(name * 50 + "\n")

        threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(name * 50 for name in "abcd" for _ in range(200))


def test_delayed_lines_are_written_together_in_order(pipe: Pipe) -> None:
    stream = LogStream(pipe.writer, max_delay_s=0.01)
    for number in range(3):
        stream.write(f"{number}\n")
    written = ""

    while len(written) < len("0\n1\n2\n"):
        written += pipe.read()  # blocks until the thread has written

    assert written == "0\n1\n2\n"


def test_flush_and_a_full_buffer_write_delayed_lines_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = LogStream(file.fileno(), max_delay_s=60)
        for _ in range(700):
            stream.write(LINE)
        num_full = (tmp_path / "log").stat().st_size // len(LINE)
        stream.flush()

    assert 0 < num_full < 700
    assert (tmp_path / "log").read_text(encoding="utf-8") == LINE * 700


@pytest.mark.usefixtures("stream")
def test_warning_is_written_at_once_after_delayed_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        configure_logs(LogSettings(format="json"), stream=LogStream(file.fileno(), max_delay_s=60))
        logging.getLogger("test").info("first")
        is_delayed = not (tmp_path / "log").stat().st_size
        logging.getLogger("test").warning("second")

        lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()

    assert is_delayed
    assert [json.loads(line)["event"] for line in lines] == ["first", "second"]


@pytest.mark.usefixtures("stream")
def test_delayed_lines_are_written_when_logging_ends(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        configure_logs(LogSettings(format="json"), stream=LogStream(file.fileno(), max_delay_s=60))
        logging.getLogger("test").info("last")

        for handler in logging.getLogger().handlers:
            handler.flush()

    assert json.loads((tmp_path / "log").read_text(encoding="utf-8"))["event"] == "last"


class Later:
    """Fake of `call_later` that records the calls."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s == 1.0
        self.calls.append(call)


def test_lines_of_one_kind_are_limited_per_second_and_omitted_ones_counted() -> None:
    clock, later = ManualClock(), Later()
    limit = RepeatLimit(3, clock=clock, call_later=later)

    with capture_logs() as records:
        first = [limit.allows("UNAUTHENTICATED") for _ in range(10)]
        other = limit.allows("OVERLOADED")
        clock.advance(1.0)
        second = [limit.allows("UNAUTHENTICATED") for _ in range(2)]

    assert (first, other, second) == ([True] * 3 + [False] * 7, True, [True] * 2)
    assert [(record["event"], record["kind"], record["lines"]) for record in records] == [
        ("log lines omitted", "UNAUTHENTICATED", 7)
    ]


def test_omitted_lines_are_reported_without_further_lines() -> None:
    later = Later()
    limit = RepeatLimit(1, clock=ManualClock(), call_later=later)
    for _ in range(5):
        limit.allows("UNAUTHENTICATED")

    with capture_logs() as records:
        (report,) = later.calls
        report()
        report()

    assert [record["lines"] for record in records] == [4]
