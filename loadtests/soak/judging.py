"""What became of one call, from what was planned and what its client saw. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.v1 import translation_pb2 as pb

from loadtests.soak.answers import document_faults, meaning, stream_answers, unary_faults
from loadtests.soak.book import Ended
from loadtests.soak.ledger import UNSEEN, Ending, Entry, abandoned, hurried
from loadtests.soak.plan import PlannedCall
from loadtests.wire import Method

_OK = "OK"
_GIVEN_UP = {
    Ending.STAYS: frozenset[str](),
    Ending.LEAVES: frozenset({"CANCELLED"}),
    Ending.DISCONNECTS: frozenset({"CANCELLED"}),
    Ending.HURRIES: frozenset({"DEADLINE_EXCEEDED"}),
}
"""Statuses that the client's own library may give a call that ended before the server's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client saw of a call."""

    status: str
    is_of_server: bool
    """Whether the server said so, and not the client's own library."""

    messages: tuple[bytes, ...] = ()
    """What came, in this order."""

    details: str = ""


def judge(planned: PlannedCall, seen: Seen, *, reference: bytes | None = None) -> Ended:
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


def _of_unary(planned: PlannedCall, seen: Seen, reference: bytes | None) -> Ended:
    wrong: list[str] = []
    num_sentences = 0
    if seen.status == _OK:
        response = pb.TranslateResponse.FromString(seen.messages[0])
        request = pb.TranslateRequest.FromString(planned.raw[0])
        wrong = unary_faults(request, response, request_id=planned.request_id)
        num_sentences = _num_sentences(response)
        if reference is not None and meaning(seen.messages[0]) != reference:
            wrong.append(f"{planned.request_id}: probe {planned.probe} got another answer than at first")
    return _ended(planned, seen, wrong=wrong, num_sentences=num_sentences)


def _of_document(planned: PlannedCall, seen: Seen) -> Ended:
    messages = [pb.TranslatedSentence.FromString(raw) for raw in seen.messages]
    request = pb.TranslateDocumentRequest.FromString(planned.raw[0])
    wrong = document_faults(request, messages, request_id=planned.request_id, is_whole=seen.status == _OK)
    num_sentences = sum(message.HasField("sentence") for message in messages)
    return _ended(planned, seen, wrong=wrong, num_sentences=num_sentences)


def _ended(planned: PlannedCall, seen: Seen, *, wrong: Sequence[str], num_sentences: int) -> Ended:
    """Return what became of a call that is one request."""
    (answer,) = planned.answers
    unanswered, errors = _complaints(planned, seen, answer)
    entry = Entry(request_id=planned.request_id, method=planned.method.value, possible=_possible(planned, seen, answer))
    return Ended(
        kind=_kind(planned),
        status=seen.status,
        entries=[entry],
        unanswered=unanswered,
        errors=errors,
        wrong=wrong,
        num_sentences=num_sentences,
    )


def _of_stream(planned: PlannedCall, seen: Seen) -> Ended:
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
    return Ended(
        kind=_kind(planned),
        status=seen.status,
        entries=entries,
        unanswered=unanswered,
        twice=answers.twice,
        errors=errors,
        wrong=answers.faults,
        num_sentences=sum(map(_num_sentences, responses)),
    )


def _of_whole_stream(planned: PlannedCall, seen: Seen) -> Entry:
    possible = {UNSEEN}
    if seen.is_of_server and seen.status != _OK:
        possible = {seen.status}
    elif planned.ending is Ending.HURRIES and seen.status != _OK:
        possible = {UNSEEN, "DEADLINE_EXCEEDED"}  # if the server's own clock was the first
    return Entry(request_id=planned.request_id, method=planned.method.value, possible=frozenset(possible))


def _possible(planned: PlannedCall, seen: Seen, answer: str) -> frozenset[str]:
    if not planned.is_counted:
        return frozenset({UNSEEN})
    if seen.is_of_server:
        return frozenset({seen.status})
    return abandoned(planned.ending, answer)


def _complaints(planned: PlannedCall, seen: Seen, answer: str) -> tuple[list[str], list[str]]:
    """Return sentences for a call that was not answered, and for a status that nobody provoked."""
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
    return hurried(answer) if ending is Ending.HURRIES else frozenset({answer})


def _kind(planned: PlannedCall) -> str:
    return f"{planned.kind} {planned.method.value}"


def _num_sentences(response: pb.TranslateResponse) -> int:
    return sum(len(translation.sentences) for translation in response.translations)
