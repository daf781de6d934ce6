"""What a decoding process logs comes out of the server's log: records go over its connection."""

import logging
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any


class ConnectionHandler(QueueHandler):
    """Sends records over a connection, prepared so that they can be pickled."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Use a connection; while this sends, nobody else may."""
        super().__init__(connection)  # type: ignore[arg-type] # only `enqueue` touches it
        self.setFormatter(logging.Formatter("%(message)s"))  # level and logger are told beside it

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy that can be pickled, with nothing in it that the record itself does not have."""
        prepared: logging.LogRecord = super().prepare(record)
        del prepared.message  # is `msg` by now
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self.queue.send(record)  # type: ignore[attr-defined]


def log_here(record: logging.LogRecord) -> None:
    """Log a record of another process as if it had been made in this one."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
