"""Responses to hostile requests, and their faults."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, read_reply
from loadtests.hostile.requests import LEFT, HostileRequest, usual_fields
from loadtests.scenarios.contract import document_faults, translate_faults

_Detail = TypeVar("_Detail", bound=Message)

BEFORE, AFTER = "before", "after"  # request ids of the ordinary requests around an input in a stream

_MAX_RETRIES: Final = 20
_MAX_DELAY_S: Final = 5.0
_STREAMED: Final = {Method.TRANSLATE_DOCUMENT: pb.TranslatedSentence, Method.TRANSLATE_STREAM: pb.TranslateResponse}
_REASONS: Final[Mapping[str, str]] = {
    "INVALID_ARGUMENT": "INVALID_FIELD", "UNIMPLEMENTED": "UNSUPPORTED_FIELD", "NOT_FOUND": "MODEL_NOT_FOUND",
}  # fmt: skip
_WITH_FIELD: Final = frozenset({"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The response to one input."""

    status: str  # `LEFT` if the client cancelled as planned
    seconds: float
    responses: Sequence[Any] = ()
    error: status_pb2.Status = field(default_factory=status_pb2.Status)
    neighbours: Sequence[pb.TranslateResponse] = ()  # in a stream, responses to the ordinary requests around it
    call_status: str = ""  # of the stream
    num_retries: int = 0


def send(channel: grpc.Channel, sent: HostileRequest, *, model: pb.ModelVersion, timeout_s: float) -> Result:
    """Send a request and wait for the response; retry while the server is overloaded."""
    num_retries, result = 0, _send_once(channel, sent, model, timeout_s)
    while num_retries < _MAX_RETRIES and _detail(result.error, error_details_pb2.ErrorInfo).reason == "OVERLOADED":
        retry = _detail(result.error, error_details_pb2.RetryInfo)
        time.sleep(min(retry.retry_delay.ToMilliseconds() / 1000, _MAX_DELAY_S))
        num_retries, result = num_retries + 1, _send_once(channel, sent, model, timeout_s)
    return replace(result, num_retries=num_retries)


def _send_once(channel: grpc.Channel, sent: HostileRequest, model: pb.ModelVersion, timeout_s: float) -> Result:
    compression = grpc.Compression.Gzip if sent.is_compressed else None
    settings = {"timeout": timeout_s, "compression": compression}
    began_s = time.monotonic()
    if sent.method is Method.TRANSLATE_STREAM:
        ordinary = pb.TranslateRequest(texts=["A man reads."], **usual_fields(model)).SerializeToString()
        requests = [_with_id(BEFORE, ordinary), _with_id("bad", sent.message), _with_id(AFTER, ordinary)]
        call = channel.stream_stream(sent.method.path)(iter(requests), **settings)
    else:  # a unary response is read like a stream
        call = channel.unary_stream(sent.method.path)(sent.message, **settings)
    reply = read_reply(call, began_s=began_s, on_first=call.cancel if sent.leaves else lambda: None)
    has_left = sent.leaves and reply.messages and reply.status == "CANCELLED"
    error = (rpc_status.from_call(call) if reply.status != "OK" else None) or status_pb2.Status(message=reply.message)
    result = Result(status=LEFT if has_left else reply.status, seconds=reply.latency_s, error=error)
    response_type: Any = _STREAMED.get(sent.method, pb.TranslateResponse)
    try:
        result = replace(result, responses=[response_type.FromString(one) for one in reply.messages])
    except DecodeError as cause:  # such as a lone surrogate
        return replace(result, status="UNKNOWN", error=status_pb2.Status(message=f"invalid response: {cause}"))
    return _split_stream(result) if sent.method is Method.TRANSLATE_STREAM else result


def _split_stream(result: Result) -> Result:
    """Separate the response to an input from those to its neighbours, and its status from that of the call."""
    own = [response for response in result.responses if response.request_id not in (BEFORE, AFTER)]
    neighbours = [response for response in result.responses if response.request_id in (BEFORE, AFTER)]
    result = replace(result, responses=own, neighbours=neighbours, call_status=result.status)
    if own and own[0].HasField("error"):
        return replace(result, status=code_pb2.Code.Name(own[0].error.code), error=own[0].error)
    return result


def _with_id(name: str, message: bytes) -> bytes:
    """Prepend a request id; an id in the message comes last and counts."""
    return pb.TranslateRequest(request_id=name).SerializeToString() + message


def _detail(status: status_pb2.Status, message_type: Callable[[], _Detail]) -> _Detail:
    """Return the first detail of a type, or an empty message."""
    message = message_type()
    for detail in status.details:
        if detail.Unpack(message):
            break
    return message


def faults(sent: HostileRequest, result: Result) -> Iterator[str]:
    """Yield the faults of a response."""
    expected = sent.expected.statuses
    if result.status not in expected:
        yield f"{result.status} ({result.error.message[:200]}) instead of {' or '.join(expected)}"
    elif result.status in {"OK", LEFT}:
        yield from _response_faults(sent, result)
    elif result.status in _REASONS:  # other statuses come from gRPC itself
        yield from _rejection_faults(result, sent.expected.field)
    if sent.method is Method.TRANSLATE_STREAM:
        yield from _neighbour_faults(result)


def _response_faults(sent: HostileRequest, result: Result) -> Iterator[str]:
    if sent.method is Method.TRANSLATE_DOCUMENT:
        document = pb.TranslateDocumentRequest.FromString(sent.message)
        yield from document_faults(document, result.responses, is_complete=result.status == "OK")
    else:
        message = _with_id("bad", sent.message) if sent.method is Method.TRANSLATE_STREAM else sent.message
        for response in result.responses:
            yield from translate_faults(pb.TranslateRequest.FromString(message), response)
        if len(result.responses) != 1:
            yield f"{len(result.responses)} responses"


def _rejection_faults(result: Result, expected_field: str) -> Iterator[str]:
    info = _detail(result.error, error_details_pb2.ErrorInfo)
    violations = _detail(result.error, error_details_pb2.BadRequest).field_violations
    paths = [violation.field for violation in violations]
    if (info.domain, info.reason) != ("dragoman", _REASONS[result.status]):
        yield f"{result.status} has the reason {info.domain}/{info.reason}"
    if result.status in _WITH_FIELD and not all(paths or [""]):
        yield f"{result.status} names no field"
    if expected_field and not any(path.startswith(expected_field) for path in paths):
        yield f"{result.status} names {paths} instead of {expected_field}"
    if not 0 < len(result.error.message) <= 2000:
        yield f"{result.status} has a message of {len(result.error.message)} characters"


def _neighbour_faults(result: Result) -> Iterator[str]:
    names = sorted(neighbour.request_id for neighbour in result.neighbours)
    if names != sorted((BEFORE, AFTER)):
        yield f"only {names} of the ordinary requests in the same stream were answered"
    for neighbour in result.neighbours:
        if not neighbour.translations:
            yield f"the ordinary request {neighbour.request_id} the hostile one failed: {neighbour.error.message[:200]}"
    if result.call_status != "OK":
        yield f"the stream ended with {result.call_status}"
