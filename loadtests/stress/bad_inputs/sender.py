"""Sends bad inputs over gRPC, raw bytes as they are, and judges what comes back."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from loadtests.contract import document_faults, translate_faults
from loadtests.stress.bad_inputs.inputs import CHEAP, LEFT, BadInput, Limits
from loadtests.stress.bad_inputs.messages import encoded
from loadtests.stress.callers import connect
from loadtests.wire import Method

BEFORE, AFTER = "before", "after"
"""Request ids of the ordinary requests around an input in a stream."""

INTERNAL: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"})
HANG: Final = frozenset({"DEADLINE_EXCEEDED"})
LOST: Final = frozenset({"UNAVAILABLE", "CANCELLED"})
_STREAMED: Final = {Method.TRANSLATE_DOCUMENT: pb.TranslatedSentence, Method.TRANSLATE_STREAM: pb.TranslateResponse}
_REQUEST_ID_FIELD: Final = 7
_OVERLOADED: Final = "OVERLOADED"
_MAX_RETRIES: Final = 20
_LONGEST_WAIT_S: Final = 5.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What the details of a status say."""

    reason: str = ""
    domain: str = ""
    fields: tuple[str, ...] = ()
    message: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one input."""

    status: str
    """Name; `LEFT` if the caller cancelled as planned."""

    seconds: float
    responses: Sequence[Any] = ()
    rejection: Rejection = field(default_factory=Rejection)
    neighbours: Sequence[pb.TranslateResponse] = ()
    """In a stream, the answers to the ordinary requests before and after it."""

    call_status: str = ""
    num_retries: int = 0
    """How often the server was overloaded and said when to retry."""


class Sender:
    """Sends one input at a time on a connection of its own; retries what the server has no room for."""

    def __init__(self, target: str, limits: Limits, *, timeout_s: float) -> None:
        """Connect to a server; no call takes longer than the timeout."""
        self._channel = connect(target)
        self._timeout_s = timeout_s
        self._neighbours = [
            pb.TranslateRequest(
                texts=["A man reads."], request_id=name, options=pb.DecodingOptions(**CHEAP), **limits.languages
            ).SerializeToString()
            for name in (BEFORE, AFTER)
        ]
        self.close = self._channel.close

    def send(self, bad: BadInput) -> Answer:
        """Send an input and wait for its end; again, a bounded number of times, if the server is overloaded.

        Raises:
            DecodeError: if a client could not read the answer: a lone surrogate, for instance.
        """
        answer, num_retries = self._sent(bad), 0
        while answer.rejection.reason == _OVERLOADED and num_retries < _MAX_RETRIES:
            time.sleep(min(answer.rejection.retry_after_s, _LONGEST_WAIT_S))
            answer, num_retries = self._sent(bad), num_retries + 1
        return replace(answer, num_retries=num_retries)

    def _sent(self, bad: BadInput) -> Answer:
        began_s = time.perf_counter()
        call = self._called(bad)
        raw: list[bytes] = []
        with contextlib.suppress(grpc.RpcError):  # its status is looked at below
            for message in call:
                raw.append(message)
                if len(raw) == bad.leaves_after:
                    call.cancel()
        code = call.code()
        seconds = time.perf_counter() - began_s
        response_type: Any = _STREAMED.get(bad.method) or getattr(pb, f"{bad.method.value}Response")
        responses = [response_type.FromString(one) for one in raw]
        if len(raw) == bad.leaves_after and code is grpc.StatusCode.CANCELLED:
            return Answer(status=LEFT, seconds=seconds, responses=responses)
        status = None if code is grpc.StatusCode.OK else rpc_status.from_call(call)
        rejection = rejection_of_status(status) if status else Rejection(message=call.details() or "")
        answer = Answer(status=code.name, seconds=seconds, responses=responses, rejection=rejection)
        return _own_of_stream(answer) if bad.method is Method.TRANSLATE_STREAM else answer

    def _called(self, bad: BadInput) -> Any:
        """Begin a call; one whose answer is one message is read like one of many."""
        compression = grpc.Compression.Gzip if bad.is_compressed else None
        settings = {"timeout": self._timeout_s, "metadata": bad.metadata, "compression": compression}
        if bad.method is Method.TRANSLATE_STREAM:
            before, after = self._neighbours
            requests = iter((before, streamed_message(bad), after))
            return self._channel.stream_stream(bad.method.path)(requests, **settings)
        return self._channel.unary_stream(bad.method.path)(bad.message, **settings)


def streamed_message(bad: BadInput) -> bytes:
    """Return an input as it is sent in a stream, where each request needs an id; one that it brings comes last."""
    return bad.message if bad.has_request_id else encoded(_REQUEST_ID_FIELD, b"bad") + bad.message


def rejection_of_status(status: status_pb2.Status) -> Rejection:
    """Return what a status says in its details."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    bad_request = error_details_pb2.BadRequest()
    for detail in status.details:
        for message in (info, retry, bad_request):
            detail.Unpack(message)
    return Rejection(
        reason=info.reason,
        domain=info.domain,
        fields=tuple(violation.field for violation in bad_request.field_violations),
        message=status.message,
        retry_after_s=retry.retry_delay.ToMilliseconds() / 1000,
    )


def faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    """Yield a sentence for each promise that an answer breaks."""
    expected = bad.expected
    if answer.status not in expected.statuses:
        message = answer.rejection.message[:200]
        yield f"answered {answer.status} ({message}) instead of {' or '.join(sorted(expected.statuses))}"
    elif answer.status in {"OK", LEFT}:
        yield from _answer_faults(bad, answer)
    else:
        yield from _rejection_faults(bad, answer)
    if bad.method is Method.TRANSLATE_STREAM:
        yield from _neighbour_faults(answer)


def _answer_faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    if bad.method in {Method.TRANSLATE, Method.TRANSLATE_STREAM}:
        message = streamed_message(bad) if bad.method is Method.TRANSLATE_STREAM else bad.message
        for response in answer.responses:
            yield from translate_faults(pb.TranslateRequest.FromString(message), response)
        if len(answer.responses) != 1:
            yield f"{len(answer.responses)} answers came"
    elif bad.method is Method.TRANSLATE_DOCUMENT:
        document = pb.TranslateDocumentRequest.FromString(bad.message)
        yield from document_faults(document, answer.responses, is_complete=answer.status == "OK")


def _rejection_faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    rejection, expected_field = answer.rejection, bad.expected.field
    if answer.status not in _REASONS:
        return  # gRPC's own words
    if (rejection.domain, rejection.reason) != (_DOMAIN, _REASONS[answer.status]):
        yield f"{answer.status} comes with the reason {rejection.domain}/{rejection.reason}"
    if answer.status in _NAMING_A_FIELD and not all(rejection.fields or ("",)):
        yield f"{answer.status} names no field"
    if expected_field and not any(path.startswith(expected_field) for path in rejection.fields):
        yield f"{answer.status} names {rejection.fields}, not {expected_field}"
    if not 0 < len(rejection.message) <= _MAX_MESSAGE_CHARACTERS:
        yield f"{answer.status} has a message of {len(rejection.message)} characters"


def _neighbour_faults(answer: Answer) -> Iterator[str]:
    names = sorted(neighbour.request_id for neighbour in answer.neighbours)
    if names != sorted((BEFORE, AFTER)):
        yield f"of the ordinary requests beside it in the stream, {names or 'none'} were answered"
    for neighbour in answer.neighbours:
        if not neighbour.translations:
            yield f"the ordinary request {neighbour.request_id} it failed: {neighbour.error.message[:200]}"
    if answer.call_status != "OK":
        yield f"the stream ended with {answer.call_status}"


def _own_of_stream(answer: Answer) -> Answer:
    """Tell the answer to an input from those to its neighbours, and its status from that of the call."""
    own = [response for response in answer.responses if response.request_id not in (BEFORE, AFTER)]
    neighbours = [response for response in answer.responses if response.request_id in (BEFORE, AFTER)]
    answer = replace(answer, responses=own, neighbours=neighbours, call_status=answer.status)
    if not (own and own[0].HasField("error")):
        return answer
    error = own[0].error
    return replace(answer, status=code_pb2.Code.Name(error.code), rejection=rejection_of_status(error))
