"""Call records of the load client against a fake server."""

import queue
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, status_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import error_mapping
from dragoman_service.errors import DeadlineExceededError, DragomanError, OverloadedError
from loadtests.generator.calls import Method, Outcome, PlannedCall
from loadtests.generator.client import Client
from loadtests.generator.records import CallRecord
from loadtests.generator.server import Target
from tests.integration.loadtests.fake_translator import ANSWER, Answering, fake_translator

TIMEOUT_S = 30.0  # only reached by a test that would otherwise fail
TRANSLATE, DOCUMENT, STREAM = Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM
CANCELLED = grpc.StatusCode.CANCELLED


def call(method: Method, *, timeout_s: float = TIMEOUT_S, leave_after_s: float | None = None) -> PlannedCall:
    messages = (b"",) * (3 if method is STREAM else 1)
    times: dict[str, Any] = {"timeout_s": timeout_s, "leave_after_s": leave_after_s}
    return PlannedCall(method=method, messages=messages, **times, profile="chat", num_texts=len(messages))


def record_of(planned: PlannedCall, answering: Answering, *, ago_s: float = 0.0) -> CallRecord:
    """Make a call that was scheduled some time ago."""
    records: queue.SimpleQueue[CallRecord] = queue.SimpleQueue()
    with fake_translator({planned.method.value: answering}) as address, Client(Target(address=address)) as client:
        client.begin(planned, time.monotonic() - ago_s, records.put)
        return records.get(timeout=TIMEOUT_S)


def answer(*_: Any) -> bytes:
    return ANSWER.SerializeToString()


def echo(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
    return map(answer, requests)


def sentences(*_: Any) -> Iterator[bytes]:
    for decode_s in (2, 1):
        sentence = pb.Sentence(num_source_tokens=5, num_target_tokens=6)
        timings = pb.StageTimings(decode=Duration(seconds=decode_s))
        yield pb.TranslatedSentence(sentence=sentence, timings=timings).SerializeToString()


def failing(error: DragomanError, *, metadata: slice = slice(None)) -> Answering:
    """Fail as the server does, with a part of its trailing metadata."""

    def fail(_: Any, context: grpc.ServicerContext) -> None:
        mapped = error_mapping.to_rpc_error(error)
        context.set_trailing_metadata(tuple(mapped.trailing_metadata)[metadata])
        context.abort(mapped.code, mapped.message)

    return fail


TIMINGS = pb.StageTimings(queue=Duration(nanos=1_000_000), decode=Duration(seconds=2))
TIMED = pb.TranslateResponse(num_source_tokens=3, num_target_tokens=4, timings=TIMINGS).SerializeToString()
FAILED = pb.TranslateResponse(error=status_pb2.Status(code=code_pb2.INTERNAL)).SerializeToString()
FIELDS = {
    "method": "Translate", "profile": "chat", "num_texts": 1, "num_source_tokens": 3, "num_target_tokens": 4,
    "queue_s": 0.001, "encode_s": 0.0, "decode_s": 2.0,
}  # fmt: skip
OVERLOADED = OverloadedError(queued=3, limit=3, unit="segments", retry_after_s=1.5)
NO_DELAY = "ERROR RESOURCE_EXHAUSTED without retry delay"


@pytest.mark.parametrize(
    ("planned", "answering", "outcome", "fields"),
    [
        (call(TRANSLATE), lambda *_: TIMED, "ANSWERED OK", FIELDS),
        (call(TRANSLATE), lambda _, context: context.abort(CANCELLED, "no"), "ERROR CANCELLED", {}),
        (call(TRANSLATE), failing(OVERLOADED), "REJECTED RESOURCE_EXHAUSTED", {}),
        (call(TRANSLATE), failing(OVERLOADED, metadata=slice(1, 2)), NO_DELAY, {}),
        (call(TRANSLATE), failing(DeadlineExceededError("admission")), "REJECTED DEADLINE_EXCEEDED admission", {}),
        (call(TRANSLATE), failing(DeadlineExceededError("decode")), "LATE DEADLINE_EXCEEDED decode", {}),
        (call(DOCUMENT), sentences, "ANSWERED OK", {"num_source_tokens": 10, "num_target_tokens": 12, "decode_s": 2.0}),
        (call(STREAM), echo, "ANSWERED OK", {"num_target_tokens": 12}),
        (call(STREAM), lambda *_: iter([TIMED] * 2), "ERROR OK, 2 responses to 3 requests", {}),
        (call(STREAM), lambda *_: iter([FAILED] * 3), "ERROR OK, INTERNAL within", {}),
    ],
)
def test_record_has_outcome_tokens_and_stages(
    planned: PlannedCall, answering: Answering, outcome: str, fields: Mapping[str, Any]
) -> None:
    record = record_of(planned, answering)

    assert f"{record.outcome.name} {record.status}" == outcome
    assert {name: getattr(record, name) for name in fields} == fields
    assert (record.first_s is None) == (planned.method not in {DOCUMENT, STREAM})
    assert record.planned_s <= record.sent_s <= (record.first_s or record.sent_s) <= record.ended_s


def test_latency_and_deadline_count_from_the_scheduled_time() -> None:
    in_time = record_of(call(TRANSLATE), answer, ago_s=5.0)
    too_late = record_of(call(TRANSLATE, timeout_s=4.0), answer, ago_s=5.0)

    assert in_time.outcome is Outcome.ANSWERED
    assert in_time.latency_s >= in_time.lag_s >= 5.0
    assert (too_late.outcome, too_late.status) == (Outcome.LATE, "DEADLINE_EXCEEDED at the client")
