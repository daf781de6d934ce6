"""What became of one call, from what was planned and what its client saw; and the sum of all calls."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.contract import document_faults, meaning, stream_answers, translate_faults
from loadtests.stress.callers import Reply
from loadtests.stress.calls import Ending, PlannedCall
from loadtests.stress.soak.ledger import UNSEEN, AccessLog, Entry, abandoned, answered, balance, counted_requests
from loadtests.stress.verdict import Promise
from loadtests.wire import Method

_GIVEN_UP: Final = {
    Ending.CANCELS: "CANCELLED",
    Ending.DISCONNECTS: "CANCELLED",
    Ending.SHORT_DEADLINE: "DEADLINE_EXCEEDED",
}
"""Status that the client's own library gives a call that ended as planned before a status of the server came."""


@dataclass(slots=True, kw_only=True)
class Notes:
    """What became of calls, of one or of all; any thread may add to it."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls by kind and method, and by status as their callers saw it."""

    entries: list[Entry] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    """A sentence for each request that should have been answered; the next are such sentences, too."""

    twice: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Answers that are not whole, foreign, or not what they always were."""

    num_sentences: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_calls(self) -> int:
        """All that have ended."""
        return self.ends.total()

    def num_ended(self, status: str) -> int:
        """Return how many calls ended with a status."""
        return sum(count for (_, ended), count in self.ends.items() if ended == status)

    def add(self, others: "Notes") -> None:
        """Add other calls."""
        with self._lock:
            self.ends += others.ends
            self.num_sentences += others.num_sentences
            for name in ("entries", "unanswered", "twice", "errors", "wrong"):
                getattr(self, name).extend(getattr(others, name))

    def promises(self, log: AccessLog, metrics: Mapping[str, float], *, errors: Sequence[str]) -> list[Promise]:
        """Return what is promised of every call, by what the server has logged and counted since its start."""
        ledger = balance(self.entries, log.logged, counted_requests(metrics))
        return [
            Promise(name="each request is answered", broken=self.unanswered),
            Promise(name="no request is answered twice", broken=[*self.twice, *ledger.twice]),
            Promise(name="each answer is right", broken=self.wrong),
            Promise(name="no error that was not provoked", broken=[*self.errors, *errors]),
            Promise(
                name="clients and server know the same calls",
                broken=[*ledger.differing, *ledger.miscounted],
                figures={"difference": ledger.difference},
            ),
        ]


def judge(planned: PlannedCall, reply: Reply, *, reference: bytes | None = None) -> Notes:
    """Return what became of a call; `reference` is what the answer to a probe must mean."""
    notes = Notes(ends=Counter([(_kind(planned), reply.status)]))
    if planned.method is Method.TRANSLATE_STREAM:
        _judge_stream(planned, reply, notes)
        return notes
    if planned.method is Method.TRANSLATE_DOCUMENT:
        _judge_document(planned, reply, notes)
    elif reply.status == "OK":
        _judge_answer(planned, reply.messages[0], reference, notes)
    (answer,) = planned.answers
    _judge_status(planned, reply, answer, notes)
    possible = {reply.status} if reply.is_of_server else abandoned(planned.ending, answer)
    _add_entry(notes, planned, planned.request_id, possible if planned.is_counted else {UNSEEN})
    return notes


def _judge_answer(planned: PlannedCall, raw: bytes, reference: bytes | None, notes: Notes) -> None:
    request, response = pb.TranslateRequest.FromString(planned.raw[0]), pb.TranslateResponse.FromString(raw)
    faults = translate_faults(request, response, request_id=planned.request_id)
    notes.wrong += [f"{planned.request_id}: {fault}" for fault in faults]
    notes.num_sentences = _num_sentences(response)
    if reference is not None and meaning(raw) != reference:
        notes.wrong.append(f"{planned.request_id}: probe {planned.probe} got another answer than at first")


def _judge_document(planned: PlannedCall, reply: Reply, notes: Notes) -> None:
    request = pb.TranslateDocumentRequest.FromString(planned.raw[0])
    messages = [pb.TranslatedSentence.FromString(raw) for raw in reply.messages]
    faults = document_faults(request, messages, is_complete=reply.status == "OK", request_id=planned.request_id)
    notes.wrong += [f"{planned.request_id}: {fault}" for fault in faults]
    notes.num_sentences = sum(message.HasField("sentence") for message in messages)


def _judge_stream(planned: PlannedCall, reply: Reply, notes: Notes) -> None:
    """Its requests are answered one by one; it is counted itself only if it fails."""
    requests = [pb.TranslateRequest.FromString(raw) for raw in planned.raw]
    responses = [pb.TranslateResponse.FromString(raw) for raw in reply.messages]
    found = stream_answers(requests, responses)
    notes.twice += found.twice
    notes.wrong += found.faults
    notes.num_sentences = sum(map(_num_sentences, responses))
    _judge_status(planned, reply, "OK", notes)
    possible = {UNSEEN}
    if reply.status != "OK" and reply.is_of_server:
        possible = {reply.status}
    elif reply.status != "OK" and planned.ending is Ending.SHORT_DEADLINE:
        possible = {UNSEEN, "DEADLINE_EXCEEDED"}  # if the server's own clock was the first
    _add_entry(notes, planned, planned.request_id, possible)
    for request, answer in zip(requests, planned.answers, strict=True):
        status = found.statuses.get(request.request_id)
        if status is None and reply.status == "OK":
            notes.unanswered.append(f"{request.request_id} was not answered though its stream ended well")
        if status is not None and status not in answered(planned.ending, answer):
            notes.errors.append(f"{_kind(planned)} {request.request_id}: {status} instead of {answer}")
        _add_entry(notes, planned, request.request_id, {status} if status else abandoned(planned.ending, answer))


def _judge_status(planned: PlannedCall, reply: Reply, answer: str, notes: Notes) -> None:
    """Note a call that was not answered, or ended with a status that was not provoked."""
    expected: frozenset[str | None] = frozenset({_GIVEN_UP.get(planned.ending), None if planned.is_counted else answer})
    if reply.status not in (answered(planned.ending, answer) if reply.is_of_server else expected):
        is_late = reply.status == "DEADLINE_EXCEEDED" and not reply.is_of_server
        told = f"{_kind(planned)} {planned.request_id}: {reply.status} instead of {answer}: {reply.message}"
        (notes.unanswered if is_late else notes.errors).append(told)


def _add_entry(notes: Notes, planned: PlannedCall, request_id: str, possible: set[str] | frozenset[str]) -> None:
    notes.entries.append(Entry(request_id=request_id, method=planned.method.value, possible=frozenset(possible)))


def _kind(planned: PlannedCall) -> str:
    return f"{planned.kind} {planned.method.value}"


def _num_sentences(response: pb.TranslateResponse) -> int:
    return sum(len(translation.sentences) for translation in response.translations)
