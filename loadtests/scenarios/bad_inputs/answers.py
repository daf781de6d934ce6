"""What comes back for a bad input, and what is wrong with that."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from loadtests.scenarios.contract import document_faults, translate_faults
from loadtests.scenarios.bad_inputs.inputs import LEFT, BadInput, usual_fields
from loadtests.scenarios.callers import reply_of
from loadtests.generator.calls import Method

_Detail = TypeVar("_Detail", bound=Message)

BEFORE, AFTER = "before", "after"
"""Request ids of the ordinary requests around an input in a stream."""

_STREAMED: Final = {Method.TRANSLATE_DOCUMENT: pb.TranslatedSentence, Method.TRANSLATE_STREAM: pb.TranslateResponse}
_REASONS: Final[Mapping[str, str]] = {
    "INVALID_ARGUMENT": "INVALID_FIELD", "UNIMPLEMENTED": "UNSUPPORTED_FIELD", "NOT_FOUND": "MODEL_NOT_FOUND",
    "FAILED_PRECONDITION": "MODEL_STATE", "UNAUTHENTICATED": "UNAUTHENTICATED",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
}  # fmt: skip
_NAMING_A_FIELD: Final = frozenset({"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one input."""

    status: str  # name; `LEFT` if the caller cancelled as planned
    seconds: float
    responses: Sequence[Any] = ()
    error: status_pb2.Status = field(default_factory=status_pb2.Status)
    neighbours: Sequence[pb.TranslateResponse] = ()  # in a stream, answers to the ordinary requests around it
    call_status: str = ""  # of the whole stream
    num_retries: int = 0  # how often the server was overloaded and said when to retry


def send(channel: grpc.Channel, bad: BadInput, *, model: pb.ModelVersion, timeout_s: float) -> Answer:
    """Send an input and wait for its end; again, a bounded number of times, if the server is overloaded."""
    num_retries, answer = 0, _sent(channel, bad, model, timeout_s)
    while num_retries < 20 and _detail(answer.error, error_details_pb2.ErrorInfo).reason == "OVERLOADED":
        retry = _detail(answer.error, error_details_pb2.RetryInfo)
        time.sleep(min(retry.retry_delay.ToMilliseconds() / 1000, 5.0))
        num_retries, answer = num_retries + 1, _sent(channel, bad, model, timeout_s)
    return replace(answer, num_retries=num_retries)


def _sent(channel: grpc.Channel, bad: BadInput, model: pb.ModelVersion, timeout_s: float) -> Answer:
    compression = grpc.Compression.Gzip if bad.is_compressed else None
    settings = {"timeout": timeout_s, "metadata": bad.metadata, "compression": compression}
    began_s = time.monotonic()
    if bad.method is Method.TRANSLATE_STREAM:
        ordinary = pb.TranslateRequest(texts=["A man reads."], **usual_fields(model)).SerializeToString()
        requests = [_with_id(BEFORE, ordinary), _with_id("bad", bad.message), _with_id(AFTER, ordinary)]
        call = channel.stream_stream(bad.method.path)(iter(requests), **settings)
    else:  # an answer of one message is read like one of many
        call = channel.unary_stream(bad.method.path)(bad.message, **settings)
    reply = reply_of(call, began_s=began_s, on_first=call.cancel if bad.leaves else lambda: None)
    has_left = bad.leaves and reply.messages and reply.status == "CANCELLED"
    error = (rpc_status.from_call(call) if reply.status != "OK" else None) or status_pb2.Status(message=reply.message)
    answer = Answer(status=LEFT if has_left else reply.status, seconds=reply.latency_s, error=error)
    response_type: Any = _STREAMED.get(bad.method) or getattr(pb, f"{bad.method.value}Response")
    try:
        answer = replace(answer, responses=[response_type.FromString(one) for one in reply.messages])
    except DecodeError as cause:  # a lone surrogate, for instance
        return replace(answer, status="UNKNOWN", error=status_pb2.Status(message=f"the answer cannot be read: {cause}"))
    return _own_of_stream(answer) if bad.method is Method.TRANSLATE_STREAM else answer


def _own_of_stream(answer: Answer) -> Answer:
    """Tell the answer to an input from those to its neighbours, and its status from that of the call."""
    own = [response for response in answer.responses if response.request_id not in (BEFORE, AFTER)]
    neighbours = [response for response in answer.responses if response.request_id in (BEFORE, AFTER)]
    answer = replace(answer, responses=own, neighbours=neighbours, call_status=answer.status)
    if own and own[0].HasField("error"):
        return replace(answer, status=code_pb2.Code.Name(own[0].error.code), error=own[0].error)
    return answer


def _with_id(name: str, message: bytes) -> bytes:
    """Return a request as it is sent in a stream, where each needs an id; one that it brings comes last and counts."""
    return pb.TranslateRequest(request_id=name).SerializeToString() + message


def _detail(status: status_pb2.Status, message_type: Callable[[], _Detail]) -> _Detail:
    """Return what a status has of a type among its details; an empty message if it has nothing."""
    message = message_type()
    any(detail.Unpack(message) for detail in status.details)
    return message


def faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    """Yield a sentence for each promise that an answer breaks."""
    expected = bad.expected.statuses
    if answer.status not in expected:
        yield f"answered {answer.status} ({answer.error.message[:200]}) instead of {' or '.join(expected)}"
    elif answer.status in {"OK", LEFT}:
        yield from _answer_faults(bad, answer)
    elif answer.status in _REASONS:  # else they are gRPC's own words
        yield from _rejection_faults(answer, bad.expected.field)
    if bad.method is Method.TRANSLATE_STREAM:
        yield from _neighbour_faults(answer)


def _answer_faults(bad: BadInput, answer: Answer) -> Iterator[str]:
    if bad.method is Method.TRANSLATE_DOCUMENT:
        document = pb.TranslateDocumentRequest.FromString(bad.message)
        yield from document_faults(document, answer.responses, is_complete=answer.status == "OK")
    elif bad.method.translates:
        message = _with_id("bad", bad.message) if bad.method is Method.TRANSLATE_STREAM else bad.message
        for response in answer.responses:
            yield from translate_faults(pb.TranslateRequest.FromString(message), response)
        if len(answer.responses) != 1:
            yield f"{len(answer.responses)} answers came"


def _rejection_faults(answer: Answer, expected_field: str) -> Iterator[str]:
    info = _detail(answer.error, error_details_pb2.ErrorInfo)
    violations = _detail(answer.error, error_details_pb2.BadRequest).field_violations
    paths = [violation.field for violation in violations]
    if (info.domain, info.reason) != ("dragoman", _REASONS[answer.status]):
        yield f"{answer.status} comes with the reason {info.domain}/{info.reason}"
    if answer.status in _NAMING_A_FIELD and not all(paths or [""]):
        yield f"{answer.status} names no field"
    if expected_field and not any(path.startswith(expected_field) for path in paths):
        yield f"{answer.status} names {paths}, not {expected_field}"
    if not 0 < len(answer.error.message) <= 2000:
        yield f"{answer.status} has a message of {len(answer.error.message)} characters"


def _neighbour_faults(answer: Answer) -> Iterator[str]:
    names = sorted(neighbour.request_id for neighbour in answer.neighbours)
    if names != sorted((BEFORE, AFTER)):
        yield f"of the ordinary requests beside it in the stream, {names or 'none'} were answered"
    for neighbour in answer.neighbours:
        if not neighbour.translations:
            yield f"the ordinary request {neighbour.request_id} it failed: {neighbour.error.message[:200]}"
    if answer.call_status != "OK":
        yield f"the stream ended with {answer.call_status}"
