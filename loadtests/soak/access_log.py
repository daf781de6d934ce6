"""The server's log as a witness: how it ended each call, and what it complains of."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.soak.ledger import Logged

_COMPLAINTS = frozenset({"error", "critical"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    """What a log comes to."""

    logged: tuple[Logged, ...]
    """Every call that was counted, and every request of a stream."""

    complaints: tuple[str, ...]
    """Errors, and lines that are no record of the log: what Python or a library writes when something is wrong."""


def read_access_log(path: Path) -> AccessLog:
    """Read the log of a server that has ended."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse_access_log(lines)


def parse_access_log(lines: Iterable[str]) -> AccessLog:
    """Read the lines of a log."""
    logged, complaints = [], []
    for line, record in _records(lines):
        if record is None or record.get("level") in _COMPLAINTS:
            complaints.append(line)
        elif _is_counted(record):
            logged.append(Logged(request_id=record["request_id"], method=record["method"], status=record["status"]))
    return AccessLog(logged=tuple(logged), complaints=tuple(complaints))


def _records(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for line in lines:
        text = line.strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except ValueError:
            record = None
        yield text, record if isinstance(record, dict) else None


def _is_counted(record: dict[str, Any]) -> bool:
    """Tell whether a record is that of a call; a stream is counted only if it failed itself, by its requests else."""
    return record.get("event") == "request" or (record.get("event") == "stream" and "reason" in record)
