"""Accounting of calls: what clients recorded, and whether the server logged and counted each call exactly once.

Every call, and every request of a stream, has its own id, which the server repeats in its access log. A client that
gets a status from the server can tell how the call was counted. A client that cancels, or whose own clock ends the
call, cannot: `abandoned` returns the possible statuses for the kind of call.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply
from loadtests.report.report import Check, require
from loadtests.scenarios.contract import document_faults, normalized_response, stream_answers, translate_faults
from loadtests.scenarios.soak.calls import ExpectedCall, Kind
from loadtests.scenarios.stress_server import log_path, read_log

UNSEEN: Final = "UNSEEN"  # in place of a status: the server has not counted the call
_CLIENT_STATUS: Final = {  # that the client library gives a call which ended as planned without a status of the server
    Kind.CANCELS: "CANCELLED",
    Kind.DISCONNECTS: "CANCELLED",
    Kind.SHORT_DEADLINE: "DEADLINE_EXCEEDED",
}
_REQUESTS: Final = re.compile(r'dragoman_requests_total\{method="(\w+)",status="(\w+)"\}')


class Entry(NamedTuple):
    """One call, or one request of a stream."""

    request_id: str
    method: str
    possible: frozenset[str]  # statuses with which the server may have counted it, or UNSEEN


def answered(kind: Kind, answer: str) -> frozenset[str]:
    """Return the statuses with which the server may answer; `answer` is the one if there is time."""
    if kind is Kind.SHORT_DEADLINE:
        return frozenset({answer, "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})  # the last if it expects to be late
    return frozenset({answer})


def abandoned(kind: Kind, answer: str) -> frozenset[str]:
    """Return how the server may have counted a request that its client gave up before a status came."""
    return frozenset({UNSEEN, "CANCELLED"}) | answered(kind, answer)


def read_access_log(output: Path) -> tuple[list[Entry], list[str]]:
    """Return the counted calls in the log of a server, and its errors.

    These are unary calls, documents and requests of streams; a stream itself only if it failed.
    """
    with log_path(output).open(encoding="utf-8", errors="replace") as lines:
        records, errors = read_log(lines)
    logged = [
        Entry(record["request_id"], record["method"], frozenset({record["status"]}))
        for record in records
        if record.get("event") == "request" or (record.get("event") == "stream" and "reason" in record)
    ]
    return logged, errors


@dataclass(slots=True, kw_only=True)
class Accounting:
    """Finished calls and their faults."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)  # number of calls by label and client status
    entries: list[Entry] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # incomplete, foreign or changed responses
    first_answers: dict[bytes, bytes] = field(default_factory=dict)  # of probes, by request
    num_sentences: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_calls(self) -> int:
        """Number of finished calls."""
        return self.ends.total()

    def num_ended(self, status: str) -> int:
        """Return the number of calls with a client status."""
        return sum(count for (_, ended), count in self.ends.items() if ended == status)

    def record(self, planned: ExpectedCall, reply: Reply) -> None:
        """Check and record a finished call; thread-safe."""
        with self._lock:
            self.ends[planned.label, reply.status] += 1
            if planned.method is Method.TRANSLATE_STREAM:
                self._record_stream(planned, reply)
                return
            self._check_response(planned, reply)
            (answer,) = planned.answers
            self._check_status(planned, reply, answer)
            possible = {reply.status} if reply.is_from_server else abandoned(planned.kind, answer)
            self._add_entry(planned, planned.request_id, possible if planned.is_counted else {UNSEEN, "CANCELLED"})

    def checks(
        self, logged: Sequence[Entry], metrics: Mapping[str, float], *, errors: Sequence[str], exit_code: int
    ) -> list[Check]:
        """Compare with what the server has logged and counted since its start."""
        num_lines = Counter(line.request_id for line in logged)
        repeated = [f"{request_id} was logged {count} times" for request_id, count in num_lines.items() if count > 1]
        differing = sorted(_differing(self.entries, logged))
        miscounted = _miscounted(self.entries, logged, metrics)
        difference = len(differing) + sum(miscounted.values())
        num_failed = round(metrics.get('dragoman_segments_total{outcome="error"}', 0))
        failed = [f"{num_failed} segments failed"] if num_failed else []
        return [
            Check(name="each request is answered", failures=self.unanswered),
            Check(name="no request has two answers", failures=[*self.duplicates, *repeated]),
            Check(name="each response is right", failures=self.faults),
            Check(name="no unexpected error", failures=[*self.errors, *errors, *failed]),
            Check(
                name="clients and server agree on all calls",
                failures=[*differing, *miscounted],
                figures={"difference": difference},
            ),
            require("the server drains", exit_code == 0, f"exit code {exit_code}"),
        ]

    def _check_response(self, planned: ExpectedCall, reply: Reply) -> None:
        faults: Iterable[str] = ()
        name, is_complete = planned.request_id, reply.status == "OK"
        if planned.method is Method.TRANSLATE_DOCUMENT:
            document = pb.TranslateDocumentRequest.FromString(planned.raw[0])
            messages = [pb.TranslatedSentence.FromString(raw) for raw in reply.messages]
            faults = document_faults(document, messages, is_complete=is_complete, request_id=name)
            self.num_sentences += sum(message.HasField("sentence") for message in messages)
        elif planned.method is Method.TRANSLATE and is_complete:
            request = pb.TranslateRequest.FromString(planned.raw[0])
            response = pb.TranslateResponse.FromString(reply.messages[0])
            faults = translate_faults(request, response, request_id=name)
            self.num_sentences += _num_sentences(response)
        self.faults += [f"{name}: {fault}" for fault in faults]
        if planned.kind is Kind.PROBE and is_complete:
            answer = normalized_response(reply.messages[0])
            if self.first_answers.setdefault(planned.raw[0], answer) != answer:
                self.faults.append(f"{name}: the response differs from the first one")

    def _record_stream(self, planned: ExpectedCall, reply: Reply) -> None:
        """Record the requests of a stream; the stream itself is counted only if it fails."""
        requests = [pb.TranslateRequest.FromString(raw) for raw in planned.raw]
        responses = [pb.TranslateResponse.FromString(raw) for raw in reply.messages]
        found = stream_answers(requests, responses)
        self.duplicates += found.duplicates
        self.faults += found.faults
        self.num_sentences += sum(map(_num_sentences, responses))
        self._check_status(planned, reply, "OK")
        possible = {UNSEEN}
        if reply.status != "OK" and reply.is_from_server:
            possible = {reply.status}
        elif reply.status != "OK" and planned.kind is Kind.SHORT_DEADLINE:
            possible = {UNSEEN, "DEADLINE_EXCEEDED"}  # the latter if the server's clock was first
        self._add_entry(planned, planned.request_id, possible)
        for request, answer in zip(requests, planned.answers, strict=True):
            status = found.statuses.get(request.request_id)
            if status is None and reply.status == "OK":
                self.unanswered.append(f"{request.request_id} was not answered, but its stream ended with OK")
            if status is not None and status not in answered(planned.kind, answer):
                self.errors.append(f"{planned.label} {request.request_id}: {status} instead of {answer}")
            self._add_entry(planned, request.request_id, {status} if status else abandoned(planned.kind, answer))

    def _check_status(self, planned: ExpectedCall, reply: Reply, answer: str) -> None:
        expected_of_client = {_CLIENT_STATUS.get(planned.kind), None if planned.is_counted else answer}
        if reply.status not in (answered(planned.kind, answer) if reply.is_from_server else expected_of_client):
            is_late = reply.status == "DEADLINE_EXCEEDED" and not reply.is_from_server
            sentence = f"{planned.label} {planned.request_id}: {reply.status} instead of {answer}: {reply.message}"
            (self.unanswered if is_late else self.errors).append(sentence)

    def _add_entry(self, planned: ExpectedCall, request_id: str, possible: Iterable[str]) -> None:
        self.entries.append(Entry(request_id, planned.method.value, frozenset(possible)))


def _differing(entries: Sequence[Entry], logged: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence for each call on which clients and server disagree."""
    recorded, ended = {entry.request_id: entry for entry in entries}, {line.request_id: line for line in logged}
    for request_id in recorded.keys() | ended.keys():
        entry, line = recorded.get(request_id), ended.get(request_id)
        (status,) = line.possible if line else {UNSEEN}
        if entry is None:
            yield f"{request_id}: logged with {status}, but no client made the call"
        elif status not in entry.possible or (line and line.method != entry.method):
            yield f"{entry.method} {request_id}: logged with {status}, expected {' or '.join(sorted(entry.possible))}"


def _miscounted(entries: Sequence[Entry], logged: Sequence[Entry], metrics: Mapping[str, float]) -> dict[str, int]:
    """Return a sentence for each counter that contradicts the log or the clients, with the difference."""
    matches = ((_REQUESTS.fullmatch(name), value) for name, value in metrics.items())
    counted = Counter({match.groups(): round(value) for match, value in matches if match})
    in_log, possible = _sums(logged), _sums(entries)
    certain = _sums(entry for entry in entries if len(entry.possible) == 1)
    sentences = {}
    for pair in sorted(counted.keys() | in_log.keys() | certain.keys()):
        count = counted[pair]
        excess = max(abs(count - in_log[pair]), certain[pair] - count, count - possible[pair])
        if excess > 0:
            server, clients = f"counted {count} and logged {in_log[pair]}", f"{certain[pair]} to {possible[pair]}"
            sentences[f"{' '.join(pair)}: the server {server}, the clients {clients}"] = excess
    return sentences


def _sums(entries: Iterable[Entry]) -> Counter[tuple[str, ...]]:
    return Counter((entry.method, status) for entry in entries for status in entry.possible - {UNSEEN})


def _num_sentences(response: pb.TranslateResponse) -> int:
    return sum(len(translation.sentences) for translation in response.translations)
