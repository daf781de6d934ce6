"""Whether the answer to an input is right: pure functions of both."""

from collections.abc import Iterator, Mapping
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests.bad_inputs.answers import Answer
from loadtests.bad_inputs.callers import AFTER, BEFORE, streamed_message
from loadtests.bad_inputs.inputs import LEFT, BadInput, Method
from loadtests.contract import document_faults, translate_faults

_OK: Final = grpc.StatusCode.OK.name
INTERNAL: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"})
"""The server failed, or said so."""

HANG: Final = frozenset({"DEADLINE_EXCEEDED"})
LOST: Final = frozenset({"UNAVAILABLE", "CANCELLED"})
"""Connection or call ended and nobody said why."""

_DOMAIN: Final = "dragoman"
_MAX_MESSAGE_CHARACTERS: Final = 2000
_REASONS: Final[Mapping[str, str]] = {
    "INVALID_ARGUMENT": "INVALID_FIELD",
    "UNIMPLEMENTED": "UNSUPPORTED_FIELD",
    "NOT_FOUND": "MODEL_NOT_FOUND",
    "FAILED_PRECONDITION": "MODEL_STATE",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
}
_NAMING_A_FIELD: Final = frozenset({"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"})


def faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    """Yield a sentence for each promise that an answer breaks."""
    expected = bad.content.expected
    if answer.status not in expected.statuses:
        message = answer.refusal.message[:200]
        yield f"answered {answer.status} ({message}) instead of {' or '.join(sorted(expected.statuses))}"
    elif answer.status in {_OK, LEFT}:
        yield from _answer_faults(bad, answer)
    else:
        yield from _refusal_faults(bad, answer)
    if bad.method is Method.STREAM:
        yield from _neighbour_faults(answer)


def _answer_faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    match bad.method:
        case Method.UNARY | Method.STREAM:
            message = streamed_message(bad) if bad.method is Method.STREAM else bad.content.message
            request = pb.TranslateRequest.FromString(message)
            for response in (one for one in answer.responses if isinstance(one, pb.TranslateResponse)):
                yield from translate_faults(request, response)
            if len(answer.responses) != 1:
                yield f"{len(answer.responses)} answers came"
        case Method.DOCUMENT:
            document = pb.TranslateDocumentRequest.FromString(bad.content.message)
            messages = [one for one in answer.responses if isinstance(one, pb.TranslatedSentence)]
            yield from document_faults(document, messages, is_complete=answer.status == _OK)


def _refusal_faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    refusal, field = answer.refusal, bad.content.expected.field
    if answer.status not in _REASONS:
        return  # gRPC's own words
    if (refusal.domain, refusal.reason) != (_DOMAIN, _REASONS[answer.status]):
        yield f"{answer.status} comes with the reason {refusal.domain}/{refusal.reason}"
    if answer.status in _NAMING_A_FIELD and not all(refusal.fields or ("",)):
        yield f"{answer.status} names no field"
    if field and not any(path.startswith(field) for path in refusal.fields):
        yield f"{answer.status} names {refusal.fields}, not {field}"
    if not 0 < len(refusal.message) <= _MAX_MESSAGE_CHARACTERS:
        yield f"{answer.status} has a message of {len(refusal.message)} characters"


def _neighbour_faults(answer: Answer) -> Iterator[str]:
    names = sorted(getattr(neighbour, "request_id", "") for neighbour in answer.neighbours)
    if names != sorted((BEFORE, AFTER)):
        yield f"of the ordinary requests beside it in the stream, {names or 'none'} were answered"
    for neighbour in answer.neighbours:
        if isinstance(neighbour, pb.TranslateResponse) and not neighbour.translations:
            yield f"the ordinary request {neighbour.request_id} it failed: {neighbour.error.message[:200]}"
    if answer.call_status != _OK:
        yield f"the stream ended with {answer.call_status}"
