"""What the clients noted of each call, and whether the server logged and counted the same: each call exactly once.

Every call, and every request of a stream, has an id of its own that the server repeats in its access log. A caller that
gets a status from the server knows how the call was counted. One that cancels, or whose own clock ends the call, does
not: which statuses can be, or none, depends on the kind of call (`abandoned`); nothing else is right.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dragoman.v1 import translation_pb2 as pb

from loadtests.scenarios.contract import document_faults, meaning, stream_answers, translate_faults
from loadtests.scenarios.callers import Kind, PlannedCall, Reply
from loadtests.scenarios.stress_server import log_path, read_log
from loadtests.report.checks import Promise, require
from loadtests.generator.calls import Method

UNSEEN: Final = "UNSEEN"  # in place of a status: the server has not counted the call
_GIVEN_UP: Final = {
    Kind.CANCELS: "CANCELLED",
    Kind.DISCONNECTS: "CANCELLED",
    Kind.SHORT_DEADLINE: "DEADLINE_EXCEEDED",
}
"""Status that the client's own library gives a call that ended as planned before a status of the server came."""

_REQUESTS: Final = re.compile(r'mt_requests_total\{method="(\w+)",status="(\w+)"\}')


class Entry(NamedTuple):
    """One call, or one request of a stream, as one side knows it."""

    request_id: str
    method: str
    possible: frozenset[str]  # statuses that the server may have counted it with, UNSEEN among them; one is certain


def answered(kind: Kind, answer: str) -> frozenset[str]:
    """Return the statuses that the server may answer a request with; `answer` is the one if there is time."""
    if kind is Kind.SHORT_DEADLINE:
        return frozenset({answer, "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})  # the last: it would come too late
    return frozenset({answer})


def abandoned(kind: Kind, answer: str) -> frozenset[str]:
    """Return how the server may have counted a request that its caller gave up before a status of the server came."""
    return frozenset({UNSEEN, "CANCELLED"}) | answered(kind, answer)


def read_access_log(output: Path) -> tuple[list[Entry], list[str]]:
    """Return every call in the log of a server that was started for an output directory, and what it complains of.

    These are the calls that it has counted and all requests of streams; a stream itself only if it failed.
    """
    with log_path(output).open(encoding="utf-8", errors="replace") as lines:
        records, complaints = read_log(lines)
    logged = [
        Entry(record["request_id"], record["method"], frozenset({record["status"]}))
        for record in records
        if record.get("event") == "request" or (record.get("event") == "stream" and "reason" in record)
    ]
    return logged, complaints


@dataclass(slots=True, kw_only=True)
class Notes:
    """What became of calls; sentences of what should have become otherwise."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)  # calls by label, and by status as callers saw it
    entries: list[Entry] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # answers that are not whole, foreign, or not what they always were
    first_answers: dict[bytes, bytes] = field(default_factory=dict)  # what those to probes must mean, by request
    num_sentences: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_calls(self) -> int:
        """All that have ended."""
        return self.ends.total()

    def num_ended(self, status: str) -> int:
        """Return how many calls ended with a status."""
        return sum(count for (_, ended), count in self.ends.items() if ended == status)

    def note(self, planned: PlannedCall, reply: Reply) -> None:
        """Judge a call that has ended; any thread may."""
        with self._lock:
            self.ends[planned.label, reply.status] += 1
            if planned.method is Method.TRANSLATE_STREAM:
                self._note_stream(planned, reply)
                return
            self._judge(planned, reply)
            (answer,) = planned.answers
            self._note_status(planned, reply, answer)
            possible = {reply.status} if reply.is_of_server else abandoned(planned.kind, answer)
            self._add_entry(planned, planned.request_id, possible if planned.is_counted else {UNSEEN, "CANCELLED"})

    def promises(
        self, logged: Sequence[Entry], metrics: Mapping[str, float], *, errors: Sequence[str], exit_code: int
    ) -> list[Promise]:
        """Return what is promised of every call, by what the server has logged and counted since its start."""
        num_lines = Counter(line.request_id for line in logged)
        twice = [f"{request_id} was ended {count} times" for request_id, count in num_lines.items() if count > 1]
        differing = sorted(_differing(self.entries, logged))
        miscounted = _miscounted(self.entries, logged, metrics)
        difference = len(differing) + sum(miscounted.values())
        num_failed = round(metrics.get('mt_segments_total{outcome="error"}', 0))
        failed = [f"{num_failed} segments failed"] if num_failed else []
        return [
            Promise(name="each request is answered", broken=self.unanswered),
            Promise(name="no request is answered twice", broken=[*self.twice, *twice]),
            Promise(name="each answer is right", broken=self.wrong),
            Promise(name="no error that was not provoked", broken=[*self.errors, *errors, *failed]),
            Promise(
                name="clients and server know the same calls",
                broken=[*differing, *miscounted],
                figures={"difference": difference},
            ),
            require("the server drains", exit_code == 0, f"it ended with exit code {exit_code}"),
        ]

    def _judge(self, planned: PlannedCall, reply: Reply) -> None:
        """Note what is wrong with the answer to a call that is no stream of requests."""
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
        self.wrong += [f"{name}: {fault}" for fault in faults]
        if planned.kind is Kind.PROBE and is_complete:
            answer = meaning(reply.messages[0])
            if self.first_answers.setdefault(planned.raw[0], answer) != answer:
                self.wrong.append(f"{name}: another answer than at first")

    def _note_stream(self, planned: PlannedCall, reply: Reply) -> None:
        """Its requests are answered one by one; it is counted itself only if it fails."""
        requests = [pb.TranslateRequest.FromString(raw) for raw in planned.raw]
        responses = [pb.TranslateResponse.FromString(raw) for raw in reply.messages]
        found = stream_answers(requests, responses)
        self.twice += found.twice
        self.wrong += found.faults
        self.num_sentences += sum(map(_num_sentences, responses))
        self._note_status(planned, reply, "OK")
        possible = {UNSEEN}
        if reply.status != "OK" and reply.is_of_server:
            possible = {reply.status}
        elif reply.status != "OK" and planned.kind is Kind.SHORT_DEADLINE:
            possible = {UNSEEN, "DEADLINE_EXCEEDED"}  # if the server's own clock was the first
        self._add_entry(planned, planned.request_id, possible)
        for request, answer in zip(requests, planned.answers, strict=True):
            status = found.statuses.get(request.request_id)
            if status is None and reply.status == "OK":
                self.unanswered.append(f"{request.request_id} was not answered though its stream ended well")
            if status is not None and status not in answered(planned.kind, answer):
                self.errors.append(f"{planned.label} {request.request_id}: {status} instead of {answer}")
            self._add_entry(planned, request.request_id, {status} if status else abandoned(planned.kind, answer))

    def _note_status(self, planned: PlannedCall, reply: Reply, answer: str) -> None:
        """Note a call that was not answered, or ended with a status that was not provoked."""
        given_up = {_GIVEN_UP.get(planned.kind), None if planned.is_counted else answer}
        if reply.status not in (answered(planned.kind, answer) if reply.is_of_server else given_up):
            is_late = reply.status == "DEADLINE_EXCEEDED" and not reply.is_of_server
            told = f"{planned.label} {planned.request_id}: {reply.status} instead of {answer}: {reply.message}"
            (self.unanswered if is_late else self.errors).append(told)

    def _add_entry(self, planned: PlannedCall, request_id: str, possible: Iterable[str]) -> None:
        self.entries.append(Entry(request_id, planned.method.value, frozenset(possible)))


def _differing(entries: Sequence[Entry], logged: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence for each call that one side knows otherwise than the other, or not at all."""
    noted, ended = {entry.request_id: entry for entry in entries}, {line.request_id: line for line in logged}
    for request_id in noted.keys() | ended.keys():
        entry, line = noted.get(request_id), ended.get(request_id)
        (status,) = line.possible if line else {UNSEEN}
        if entry is None:
            yield f"{request_id}: no client made it, the server ended it with {status}"
        elif status not in entry.possible or (line and line.method != entry.method):
            expected = " or ".join(sorted(entry.possible))
            yield f"{entry.method} {request_id}: expected {expected}, the server says {status}"


def _miscounted(entries: Sequence[Entry], logged: Sequence[Entry], metrics: Mapping[str, float]) -> dict[str, int]:
    """Return a sentence for each counter that the log contradicts or the clients do, with by how many calls."""
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
