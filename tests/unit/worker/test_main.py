"""Log records of a worker process go over its connection into the log of the server."""

import logging
import sys
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from dragoman_service.worker.__main__ import ConnectionHandler
from dragoman_service.worker.supervisor import log_record
from tests.mortal_worker import TIMEOUT_S

NAME = "tests.worker.remote"


class Unpicklable:
    """An argument that can be printed, but not pickled."""

    def __str__(self) -> str:
        return "printed"

    def __reduce__(self) -> str:
        raise TypeError("not picklable")


@pytest.fixture(autouse=True)
def _restored_level() -> Iterator[None]:
    yield
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def send(record: logging.LogRecord) -> logging.LogRecord:
    """Send a record over a connection and return the received record."""
    receiver, sender = Pipe()
    with receiver, sender:
        ConnectionHandler(sender).handle(record)
        assert receiver.poll(TIMEOUT_S)
        received: logging.LogRecord = receiver.recv()
        return received


def make_record(level: int = logging.INFO, message: str = "loaded", *args: object) -> logging.LogRecord:
    return logging.LogRecord(NAME, level, __file__, 1, message, args, None)


def test_record_keeps_its_fields_and_its_arguments_are_formatted_before_pickling() -> None:
    record = make_record(logging.WARNING, "%d of %s", 3, Unpicklable())
    vars(record).update({"precision": "int8", "load_s": 0.5})

    received = send(record)

    assert (received.name, received.levelno, received.getMessage()) == (NAME, logging.WARNING, "3 of printed")
    assert (vars(received)["precision"], vars(received)["load_s"]) == ("int8", 0.5)


def test_configured_root_logger_does_not_change_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    receiver, sender = Pipe()
    with receiver, sender:
        logging.basicConfig(level=logging.INFO, handlers=[ConnectionHandler(sender)])
        logging.root.handle(make_record(logging.INFO, "%d of %s", 3, "four"))
        received = receiver.recv()

    assert received.getMessage() == "3 of four"
    assert set(vars(received)) == set(vars(make_record()))


def test_traceback_is_part_of_the_message() -> None:
    record = make_record()
    try:
        int("wrong")
    except ValueError:
        record.exc_info = sys.exc_info()

    received = send(record)

    assert "ValueError: invalid literal" in received.getMessage()
    assert received.exc_info is None


def test_closed_connection_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    receiver, sender = Pipe()
    receiver.close()

    with sender:
        ConnectionHandler(sender).handle(make_record())


@pytest.mark.parametrize(("level", "is_logged"), [(logging.INFO, True), (logging.ERROR, False)])
def test_received_record_is_logged_at_the_level_of_the_server(
    caplog: pytest.LogCaptureFixture, level: int, is_logged: bool
) -> None:
    logging.getLogger(NAME).setLevel(level)

    log_record(send(make_record(logging.INFO, "loaded")))

    assert caplog.record_tuples == [(NAME, logging.INFO, "loaded")] * is_logged
