"""What a decoding process logs comes out of the server's log: records go over its connection."""

import logging
import sys
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from dragoman_service.worker.__main__ import ConnectionHandler
from dragoman_service.worker.supervisor import log_here
from tests.threaded_core import TIMEOUT_S

NAME = "tests.runtime.there"


class Unpicklable:
    """Can only be printed."""

    def __str__(self) -> str:
        return "printed"

    def __reduce__(self) -> str:
        raise TypeError("not to be pickled")


@pytest.fixture(autouse=True)
def _level_is_left_as_it_was() -> Iterator[None]:
    logger = logging.getLogger(NAME)
    yield
    logger.setLevel(logging.NOTSET)


def sent(record: logging.LogRecord) -> logging.LogRecord:
    """Return what arrives of a record."""
    here, there = Pipe()
    with here, there:
        ConnectionHandler(there).handle(record)
        assert here.poll(TIMEOUT_S)
        arrived: logging.LogRecord = here.recv()
        return arrived


def make_record(level: int = logging.INFO, message: str = "loaded", *args: object) -> logging.LogRecord:
    return logging.LogRecord(NAME, level, __file__, 1, message, args, None)


def test_a_record_arrives_with_its_name_level_and_message() -> None:
    arrived = sent(make_record(logging.WARNING, "%d of %s", 3, "four"))

    assert (arrived.name, arrived.levelno, arrived.getMessage()) == (NAME, logging.WARNING, "3 of four")


def test_its_message_is_the_same_under_a_root_logger_that_was_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    here, there = Pipe()
    with here, there:
        logging.basicConfig(level=logging.INFO, handlers=[ConnectionHandler(there)])
        logging.root.handle(make_record(logging.INFO, "%d of %s", 3, "four"))
        arrived = here.recv()

    assert arrived.getMessage() == "3 of four"
    assert set(vars(arrived)) == set(vars(make_record()))


def test_its_further_facts_arrive() -> None:
    record = make_record()
    vars(record).update({"precision": "int8", "load_s": 0.5})

    arrived = sent(record)

    assert (vars(arrived)["precision"], vars(arrived)["load_s"]) == ("int8", 0.5)


def test_arguments_that_cannot_be_pickled_arrive_printed() -> None:
    assert sent(make_record(logging.INFO, "%s", Unpicklable())).getMessage() == "printed"


def test_the_traceback_of_an_exception_arrives_as_text() -> None:
    record = make_record()
    try:
        int("wrong")
    except ValueError:
        record.exc_info = sys.exc_info()

    arrived = sent(record)

    assert "ValueError: invalid literal" in arrived.getMessage()
    assert arrived.exc_info is None


def test_a_connection_that_is_closed_fails_nobody_who_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    here, there = Pipe()
    here.close()

    with there:
        ConnectionHandler(there).handle(make_record())


def test_a_record_that_arrived_is_logged_as_if_it_were_made_here(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(NAME).setLevel(logging.INFO)

    log_here(sent(make_record(logging.INFO, "loaded")))

    assert caplog.record_tuples == [(NAME, logging.INFO, "loaded")]


def test_a_record_below_the_level_here_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(NAME).setLevel(logging.ERROR)

    log_here(sent(make_record(logging.WARNING)))

    assert not caplog.records
