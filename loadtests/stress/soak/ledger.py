"""What the clients noted against what the server logged and counted: each call exactly once. Pure.

Every call, and every request of a stream, has an id of its own that the server repeats in its access log. So each is
compared by itself; and the sums by method and status are compared with the server's counters.

A caller that gets a status from the server knows how the call was counted. One that cancels, or whose own clock ends
the call, does not: the server may not have seen it, may have ended it as cancelled or late, or may have sent an answer
that was not read. Which of these can be depends on how the call was meant to end (`abandoned`); nothing else is right.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.stress.calls import Ending
from loadtests.stress.server import is_complaint, log_records

UNSEEN: Final = "UNSEEN"
"""In place of a status: the server has not counted the call."""

_REQUESTS: Final = re.compile(r'mt_requests_total\{method="(\w+)",status="(\w+)"\}')

MethodAndStatus = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call, or one request of a stream, as its client knows it."""

    request_id: str
    method: str
    possible: frozenset[str]
    """Statuses that the server may have counted it with, UNSEEN among them; one alone is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One call, or one request of a stream, as the server has logged and counted it."""

    request_id: str
    method: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    """The server's log as a witness."""

    logged: tuple[Logged, ...]
    """Every call that was counted, and every request of a stream; a stream itself only if it failed."""

    complaints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What does not agree, a sentence each; all empty if everything does."""

    twice: Sequence[str]
    differing: Sequence[str]
    """Calls that one side knows otherwise than the other, or not at all."""

    miscounted: Sequence[str]
    """Methods and statuses of which the counter does not fit the log, or what the clients know."""

    difference: int
    """Calls that `differing` and `miscounted` are about."""


def abandoned(ending: Ending, answer: str) -> frozenset[str]:
    """Return how the server may have counted a request that its caller gave up before a status of the server came.

    Args:
        ending: how the caller meant it to end.
        answer: the status with which the server answers it if there is time: OK, or that of its refusal.
    """
    return frozenset({UNSEEN, "CANCELLED"}) | answered(ending, answer)


def answered(ending: Ending, answer: str) -> frozenset[str]:
    """Return the statuses that the server may answer a request with."""
    if ending is Ending.SHORT_DEADLINE:
        return frozenset({answer, "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})  # the last: it would come too late
    return frozenset({answer})


def read_access_log(lines: Iterable[str]) -> AccessLog:
    """Read the lines of a server's log."""
    logged, complaints = [], []
    for line, record in log_records(lines):
        if record is None or is_complaint(record):
            complaints.append(line)
        elif record.get("event") == "request" or (record.get("event") == "stream" and "reason" in record):
            logged.append(Logged(request_id=record["request_id"], method=record["method"], status=record["status"]))
    return AccessLog(logged=tuple(logged), complaints=tuple(complaints))


def counted_requests(metrics: Mapping[str, float]) -> dict[MethodAndStatus, int]:
    """Return what the server has counted, by method and status."""
    matches = ((_REQUESTS.fullmatch(name), value) for name, value in metrics.items())
    return {(match[1], match[2]): round(value) for match, value in matches if match}


def balance(entries: Iterable[Entry], logged: Iterable[Logged], counted: Mapping[MethodAndStatus, int]) -> Balance:
    """Compare the clients' notes with the server's log and counters, all of the same time."""
    entries, lines = list(entries), list(logged)
    num_lines = Counter(line.request_id for line in lines)
    twice = [f"{request_id} was ended {count} times" for request_id, count in num_lines.items() if count > 1]
    differing = _differing({entry.request_id: entry for entry in entries}, {line.request_id: line for line in lines})
    sums = Counter((line.method, line.status) for line in lines)
    miscounted, num_miscounted = _miscounted(entries, sums, counted)
    return Balance(twice=twice, differing=differing, miscounted=miscounted, difference=len(differing) + num_miscounted)


def _differing(noted: Mapping[str, Entry], ended: Mapping[str, Logged]) -> list[str]:
    sentences = []
    for request_id in noted.keys() | ended.keys():
        entry, line = noted.get(request_id), ended.get(request_id)
        status = line.status if line else UNSEEN
        if entry is None:
            sentences.append(f"{request_id}: no client made it, the server ended it with {status}")
        elif status not in entry.possible or (line and line.method != entry.method):
            expected = " or ".join(sorted(entry.possible))
            sentences.append(f"{entry.method} {request_id}: expected {expected}, the server says {status}")
    return sorted(sentences)


def _miscounted(
    entries: Iterable[Entry], logged: Mapping[MethodAndStatus, int], counted: Mapping[MethodAndStatus, int]
) -> tuple[list[str], int]:
    """Compare each counter with the log, which it must equal, and with what the clients know, which bounds it."""
    certain, possible = Counter[MethodAndStatus](), Counter[MethodAndStatus]()
    for entry in entries:
        pairs = [(entry.method, status) for status in entry.possible - {UNSEEN}]
        possible.update(pairs)
        if len(entry.possible) == 1:
            certain.update(pairs)
    sentences, difference = [], 0
    for pair in sorted(counted.keys() | logged.keys() | certain.keys()):
        count, in_log = counted.get(pair, 0), logged.get(pair, 0)
        excess = max(abs(count - in_log), certain[pair] - count, count - possible[pair])
        if excess > 0:
            difference += excess
            server, clients = f"counted {count} and logged {in_log}", f"{certain[pair]} to {possible[pair]}"
            sentences.append(f"{' '.join(pair)}: the server {server}, the clients {clients}")
    return sentences, difference
