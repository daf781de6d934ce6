"""Sends bad inputs over gRPC, raw bytes as they are, and notes what came back."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from loadtests.bad_inputs.answers import Answer, Refusal, refusal_of_call, refusal_of_status
from loadtests.bad_inputs.broken_messages import encoded
from loadtests.bad_inputs.inputs import CHEAP, LEFT, BadInput, Limits, Method, request_fields

_RESPONSES: Final[dict[Method, type[Message]]] = {
    Method.UNARY: pb.TranslateResponse,
    Method.DOCUMENT: pb.TranslatedSentence,
    Method.STREAM: pb.TranslateResponse,
    Method.GET_MODEL: pb.GetModelResponse,
    Method.LOAD_MODEL: pb.LoadModelResponse,
    Method.UNLOAD_MODEL: pb.UnloadModelResponse,
    Method.SET_MODEL_LABEL: pb.SetModelLabelResponse,
}
_REQUEST_ID_FIELD: Final = 7
_OVERLOADED: Final = "OVERLOADED"
_MAX_REPEATS: Final = 20
_LONGEST_WAIT_S: Final = 5.0

BEFORE, AFTER = "before", "after"
"""Request ids of the neighbours of an input in a stream."""

NAME = "bad"
"""Request id of an input in a stream that brings none."""


class Caller:
    """Sends one input at a time on a connection of its own; whoever is told to come back does."""

    def __init__(self, target: str, limits: Limits, *, timeout_s: float) -> None:
        """Connect to a server; no call takes longer than the timeout."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(target, options=options)
        self._timeout_s = timeout_s
        self._neighbours = [_neighbour(limits, name) for name in (BEFORE, AFTER)]
        self._stopped = threading.Event()

    def close(self) -> None:
        """Close the connection."""
        self._stopped.set()
        self._channel.close()

    def send(self, bad: BadInput) -> Answer:
        """Send an input and wait for its end; again, a bounded number of times, if the server has no room for it."""
        answer, num_repeats = self._sent(bad), 0
        while answer.refusal.reason == _OVERLOADED and num_repeats < _MAX_REPEATS:
            self._stopped.wait(min(answer.refusal.retry_after_s, _LONGEST_WAIT_S))
            answer, num_repeats = self._sent(bad), num_repeats + 1
        return replace(answer, num_repeats=num_repeats)

    def _sent(self, bad: BadInput) -> Answer:
        match bad.method:
            case Method.DOCUMENT:
                return self._document(bad)
            case Method.STREAM:
                return self._stream(bad)
            case _:
                return self._unary(bad)

    def _unary(self, bad: BadInput) -> Answer:
        method = self._channel.unary_unary(bad.method.value)
        began_s = time.perf_counter()
        call = method.future(
            bad.content.message,
            timeout=self._timeout_s,
            metadata=bad.content.metadata,
            compression=grpc.Compression.Gzip if bad.content.is_compressed else None,
        )
        code = call.code()
        seconds = time.perf_counter() - began_s
        if code is not grpc.StatusCode.OK:
            return Answer(status=code.name, seconds=seconds, refusal=refusal_of_call(call))
        return Answer(status=code.name, seconds=seconds, responses=_parsed(bad.method, [call.result()]))

    def _document(self, bad: BadInput) -> Answer:
        method = self._channel.unary_stream(bad.method.value)
        began_s = time.perf_counter()
        call = method(bad.content.message, timeout=self._timeout_s, metadata=bad.content.metadata)
        raw, has_left = _read(call, at_most=bad.content.leaves_after)
        code = call.code()
        seconds = time.perf_counter() - began_s
        responses = _parsed(bad.method, raw)
        if has_left and code is grpc.StatusCode.CANCELLED:
            return Answer(status=LEFT, seconds=seconds, responses=responses)
        refusal = Refusal() if code is grpc.StatusCode.OK else refusal_of_call(call)
        return Answer(status=code.name, seconds=seconds, responses=responses, refusal=refusal)

    def _stream(self, bad: BadInput) -> Answer:
        before, after = self._neighbours
        began_s = time.perf_counter()
        call = self._channel.stream_stream(bad.method.value)(
            iter((before, streamed_message(bad), after)), timeout=self._timeout_s, metadata=bad.content.metadata
        )
        raw, _ = _read(call)
        code = call.code()
        seconds = time.perf_counter() - began_s
        responses = _parsed(bad.method, raw)
        own = [response for response in responses if response.request_id not in (BEFORE, AFTER)]
        neighbours = [response for response in responses if response.request_id in (BEFORE, AFTER)]
        refusal, status = (refusal_of_call(call), code.name) if code is not grpc.StatusCode.OK else (Refusal(), "OK")
        if own and own[0].HasField("error"):
            refusal, status = refusal_of_status(own[0].error), code_pb2.Code.Name(own[0].error.code)
        return Answer(
            status=status,
            seconds=seconds,
            responses=own,
            refusal=refusal,
            neighbours=neighbours,
            call_status=code.name,
        )


def streamed_message(bad: BadInput) -> bytes:
    """Return an input as it is sent in a stream, where each request needs an id; one that it brings comes last."""
    return (
        bad.content.message if bad.content.is_named else encoded(_REQUEST_ID_FIELD, NAME.encode()) + bad.content.message
    )


def _neighbour(limits: Limits, request_id: str) -> bytes:
    request = pb.TranslateRequest(
        texts=["A man reads."], request_id=request_id, options=pb.DecodingOptions(**CHEAP), **request_fields(limits)
    )
    return request.SerializeToString()


def _read(call: Any, at_most: int | None = None) -> tuple[list[bytes], bool]:
    """Return the messages of a call, and whether it was left with more to come."""
    raw: list[bytes] = []
    try:
        for message in call:
            raw.append(message)
            if len(raw) == at_most:
                call.cancel()
                return raw, True
    except grpc.RpcError:
        return raw, False  # its status is looked at later
    return raw, False


def _parsed(method: Method, raw: Sequence[bytes]) -> list[Any]:
    """Return messages as a client reads them.

    Raises:
        UnreadableAnswerError: if a client could not.
    """
    try:
        return [_RESPONSES[method].FromString(one) for one in raw]
    except DecodeError as error:
        raise UnreadableAnswerError(f"{method.name}: {error}") from error


class UnreadableAnswerError(Exception):
    """What the server sent is no message: a lone surrogate, for instance."""
