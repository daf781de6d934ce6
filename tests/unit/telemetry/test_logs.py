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
