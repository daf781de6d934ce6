import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from service.telemetry.logs import LogSettings, configure_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def records(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_away_from_a_terminal_each_record_is_one_json_line(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)

    structlog.get_logger("a").info("ready", port=1)

    (record,) = records(stream)
    assert (record["event"], record["level"], record["logger"], record["port"]) == ("ready", "info", "a", 1)
    assert str(record["timestamp"]).endswith("Z")


def test_records_of_the_standard_library_keep_their_extras(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)

    logging.getLogger("b").warning("batch failed", extra={"segments": 3})

    (record,) = records(stream)
    assert (record["event"], record["level"], record["segments"]) == ("batch failed", "warning", 3)


def test_a_record_below_the_level_is_not_written(stream: io.StringIO) -> None:
    configure_logs(LogSettings(level="warning"), stream=stream)

    structlog.get_logger("a").info("ready")
    logging.getLogger("b").info("ready")

    assert stream.getvalue() == ""


def test_what_is_bound_to_the_request_is_in_every_record(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r1")

    structlog.get_logger("a").info("one")
    logging.getLogger("b").warning("two")

    assert [record["request_id"] for record in records(stream)] == ["r1", "r1"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_does_not_show_local_variables(stream: io.StringIO, log_format: Literal["json", "console"]) -> None:
    configure_logs(LogSettings(format=log_format), stream=stream)

    def fail(text: str) -> None:
        raise ValueError(len(text))

    try:
        fail("a secret " * 2)
    except ValueError:
        structlog.get_logger("a").exception("failed")

    assert "ValueError: 18" in stream.getvalue()
    assert "a secret a secret" not in stream.getvalue()


def test_the_console_format_is_for_people(stream: io.StringIO) -> None:
    configure_logs(LogSettings(format="console"), stream=stream)

    structlog.get_logger("a").info("ready", port=1)

    assert "ready" in stream.getvalue()
    assert "port=1" in stream.getvalue()


PRIVATE = " ".join(("what", "a", "caller", "sent"))  # so that no line of code, which tracebacks quote, holds it


def fail_with_a_chain(text: str) -> None:
    try:
        int(text)
    except ValueError as error:
        raise RuntimeError(f"could not do {text}") from error


def log_a_failure(logger: logging.Logger) -> None:
    try:
        fail_with_a_chain(PRIVATE)
    except RuntimeError:
        logger.exception("failed")


def test_a_failure_in_a_request_is_told_without_the_messages_that_may_quote_it(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r1")

    log_a_failure(logging.getLogger("service.a"))

    (record,) = records(stream)
    told = str(record["exception"])
    assert told.index("builtins.RuntimeError: (message withheld") < told.index("builtins.ValueError: (message withheld")
    assert "fail_with_a_chain" in told
    assert PRIVATE not in stream.getvalue()


def test_a_failure_outside_of_requests_keeps_its_message(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)

    log_a_failure(logging.getLogger("service.a"))

    assert f"could not do {PRIVATE}" in stream.getvalue()


@pytest.mark.parametrize("name", ["asyncio", "grpc._cython.cygrpc", "grpc"])
def test_what_libraries_tell_of_requests_is_withheld_even_outside_of_one(stream: io.StringIO, name: str) -> None:
    configure_logs(LogSettings(), stream=stream)

    log_a_failure(logging.getLogger(name))

    assert PRIVATE not in stream.getvalue()
    assert "fail_with_a_chain" in stream.getvalue()


async def test_asyncio_does_not_tell_how_a_forgotten_task_failed(stream: io.StringIO) -> None:
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


def test_messages_are_told_when_texts_may_be_logged(stream: io.StringIO) -> None:
    configure_logs(LogSettings(include_texts=True), stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r1")

    log_a_failure(logging.getLogger("service.a"))

    assert f"literal for int() with base 10: {PRIVATE!r}" in stream.getvalue()


def test_exceptions_that_name_each_other_are_told_once(stream: io.StringIO) -> None:
    configure_logs(LogSettings(), stream=stream)
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first

    logging.getLogger("asyncio").error("failed", exc_info=first)

    (record,) = records(stream)
    assert str(record["exception"]).count("ValueError") == 2


def test_texts_are_not_logged_by_default() -> None:
    assert LogSettings().include_texts is False
