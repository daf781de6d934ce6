"""What became of one call, from what was planned and what its client saw; and the sum of all calls."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.contract import document_faults, meaning, stream_answers, translate_faults
from loadtests.stress.calls import Ended, Ending
from loadtests.stress.soak.ledger import UNSEEN, Entry, abandoned, in_short_time
from loadtests.stress.soak.plan import SoakCall
from loadtests.wire import Method

_OK: Final = "OK"
_GIVEN_UP: Final = {
    Ending.WAITS: frozenset[str](),
    Ending.CANCELS: frozenset({"CANCELLED"}),
    Ending.DISCONNECTS: frozenset({"CANCELLED"}),
    Ending.SHORT_DEADLINE: frozenset({"DEADLINE_EXCEEDED"}),
}
"""Statuses that the client's own library may give a call that ended before a status of the server came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of one call, the requests of a stream included."""

    kind: str
    """Why it was made, and by which method."""

    status: str
    """As its caller saw it."""

    entries: Sequence[Entry] = ()
    unanswered: Sequence[str] = ()
    """A sentence for each request that should have been answered."""

    twice: Sequence[str] = ()
    """A sentence for each request that was answered more than once."""

    errors: Sequence[str] = ()
    """A sentence for each status that was not provoked."""

    wrong: Sequence[str] = ()
    """A sentence for each answer that is not whole, foreign, or not what it always was."""

    num_sentences: int = 0
    """In its answers."""


@dataclass(slots=True)
class Notes:
    """The sum of all calls; any thread may add to it."""

    num_calls: int = 0
    num_sentences: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls by kind and status."""

    entries: list[Entry] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, judged: Judged) -> None:
        """Add a call."""
        with self._lock:
            self.num_calls += 1
            self.num_sentences += judged.num_sentences
            self.ends[judged.kind, judged.status] += 1
            self.entries += judged.entries
            self.unanswered += judged.unanswered
            self.twice += judged.twice
            self.errors += judged.errors
            self.wrong += judged.wrong

    def add_errors(self, sentences: Iterable[str]) -> None:
        """Add errors that belong to no call."""
        with self._lock:
            self.errors += sentences


def judge(planned: SoakCall, seen: Ended, *, reference: bytes | None = None) -> Judged:
    """Return what became of a call.

    Args:
        planned: the call.
        seen: how it ended.
        reference: of a probe, what its answer must mean.
    """
    match planned.method:
        case Method.TRANSLATE_STREAM:
            return _of_stream(planned, seen)
        case Method.TRANSLATE_DOCUMENT:
            return _of_document(planned, seen)
        case _:
            return _of_unary(planned, seen, reference)


def _of_unary(planned: SoakCall, seen: Ended, reference: bytes | None) -> Judged:
    wrong: list[str] = []
    num_sentences = 0
    if seen.status == _OK:
        response = pb.TranslateResponse.FromString(seen.messages[0])
        request = pb.TranslateRequest.FromString(planned.raw[0])
        faults = translate_faults(request, response, request_id=planned.request_id)
        wrong = [f"{planned.request_id}: {fault}" for fault in faults]
        num_sentences = _num_sentences(response)
        if reference is not None and meaning(seen.messages[0]) != reference:
            wrong.append(f"{planned.request_id}: probe {planned.probe} got another answer than at first")
    return _ended(planned, seen, wrong=wrong, num_sentences=num_sentences)


def _of_document(planned: SoakCall, seen: Ended) -> Judged:
    messages = [pb.TranslatedSentence.FromString(raw) for raw in seen.messages]
    request = pb.TranslateDocumentRequest.FromString(planned.raw[0])
    faults = document_faults(request, messages, is_complete=seen.status == _OK, request_id=planned.request_id)
    wrong = [f"{planned.request_id}: {fault}" for fault in faults]
    num_sentences = sum(message.HasField("sentence") for message in messages)
    return _ended(planned, seen, wrong=wrong, num_sentences=num_sentences)


def _ended(planned: SoakCall, seen: Ended, *, wrong: Sequence[str], num_sentences: int) -> Judged:
    """Return what became of a call that is one request."""
    (answer,) = planned.answers
    unanswered, errors = _complaints(planned, seen, answer)
    entry = Entry(request_id=planned.request_id, method=planned.method.value, possible=_possible(planned, seen, answer))
    return Judged(
        kind=_kind(planned),
        status=seen.status,
        entries=[entry],
        unanswered=unanswered,
        errors=errors,
        wrong=wrong,
        num_sentences=num_sentences,
    )


def _of_stream(planned: SoakCall, seen: Ended) -> Judged:
    """Return what became of a stream: its requests are answered one by one, it is counted itself only if it fails."""
    requests = [pb.TranslateRequest.FromString(raw) for raw in planned.raw]
    responses = [pb.TranslateResponse.FromString(raw) for raw in seen.messages]
    answers = stream_answers(requests, responses)
    entries = [_of_whole_stream(planned, seen)]
    unanswered, errors = _complaints(planned, seen, _OK)
    for request, answer in zip(requests, planned.answers, strict=True):
        status = answers.statuses.get(request.request_id)
        if status is None:
            possible = abandoned(planned.ending, answer)
            if seen.status == _OK:
                unanswered.append(f"{request.request_id} was not answered though its stream ended well")
        else:
            possible = frozenset({status})
            if status not in _answers(planned.ending, answer):
                errors.append(f"{_kind(planned)} {request.request_id}: {status} instead of {answer}")
        entries.append(Entry(request_id=request.request_id, method=planned.method.value, possible=possible))
    return Judged(
        kind=_kind(planned),
        status=seen.status,
        entries=entries,
        unanswered=unanswered,
        twice=answers.twice,
        errors=errors,
        wrong=answers.faults,
        num_sentences=sum(map(_num_sentences, responses)),
    )


def _of_whole_stream(planned: SoakCall, seen: Ended) -> Entry:
    possible = {UNSEEN}
    if seen.is_of_server and seen.status != _OK:
        possible = {seen.status}
    elif planned.ending is Ending.SHORT_DEADLINE and seen.status != _OK:
        possible = {UNSEEN, "DEADLINE_EXCEEDED"}  # if the server's own clock was the first
    return Entry(request_id=planned.request_id, method=planned.method.value, possible=frozenset(possible))


def _possible(planned: SoakCall, seen: Ended, answer: str) -> frozenset[str]:
    if not planned.is_counted:
        return frozenset({UNSEEN})
    if seen.is_of_server:
        return frozenset({seen.status})
    return abandoned(planned.ending, answer)


def _complaints(planned: SoakCall, seen: Ended, answer: str) -> tuple[list[str], list[str]]:
    """Return sentences for a call that was not answered, and for a status that was not provoked."""
    told = f"{_kind(planned)} {planned.request_id}: {seen.status} instead of {answer}: {seen.details}"
    if seen.is_of_server:
        return [], [] if seen.status in _answers(planned.ending, answer) else [told]
    if not planned.is_counted and seen.status == answer:
        return [], []
    if seen.status in _GIVEN_UP[planned.ending]:
        return [], []
    return ([told], []) if seen.status == "DEADLINE_EXCEEDED" else ([], [told])


def _answers(ending: Ending, answer: str) -> frozenset[str]:
    """Return the statuses that the server may give."""
    return in_short_time(answer) if ending is Ending.SHORT_DEADLINE else frozenset({answer})


def _kind(planned: SoakCall) -> str:
    return f"{planned.kind} {planned.method.value}"


def _num_sentences(response: pb.TranslateResponse) -> int:
    return sum(len(translation.sentences) for translation in response.translations)
