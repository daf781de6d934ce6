"""What the load generator notes of a call, whatever a server does with it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, status_pb2

from loadtests.client import Access, Client
from loadtests.records import CallRecord
from loadtests.wire import Method, Outcome
from loadtests.workload import PlannedCall
from tests.certificates import NAME, Authority, chain_pem, key_pem
from tests.integration.fake_translator import ANSWER, Answering, fake_translator

PATIENCE_S = 30.0  # only reached by a test that would otherwise fail anyway


def call(method: Method, *, num_messages: int = 1, timeout_s: float = PATIENCE_S, **fields: Any) -> PlannedCall:
    return PlannedCall(
        method=method,
        messages=(b"",) * num_messages,
        timeout_s=timeout_s,
        leave_after_s=fields.get("leave_after_s"),
        profile="chat",
        num_texts=num_messages,
    )


def made(planned: PlannedCall, answering: Answering, *, ago_s: float = 0.0) -> CallRecord:
    """The record of a call to a server that answers it so, planned so long ago."""
    with fake_translator({planned.method.value: answering}) as target, Client(target) as connection:
        return connection.make(planned, time.monotonic() - ago_s)


def answer(*_: Any) -> bytes:
    return ANSWER.SerializeToString()


def test_an_answer_is_noted_with_its_tokens_and_stages() -> None:
    timings = pb.StageTimings(queue=Duration(nanos=1_000_000), decode=Duration(seconds=2))
    told = pb.TranslateResponse(num_source_tokens=3, num_target_tokens=4, timings=timings).SerializeToString()

    record = made(call(Method.TRANSLATE), lambda *_: told)

    assert (record.outcome, record.status) == (Outcome.ANSWERED, "OK")
    assert (record.method, record.profile) == ("Translate", "chat")
    assert (record.num_source_tokens, record.num_target_tokens, record.num_texts) == (3, 4, 1)
    assert (record.queue_s, record.encode_s, record.decode_s, record.text_s) == (0.001, 0.0, 2.0, 0.0)
    assert record.planned_s <= record.sent_s <= record.ended_s


@pytest.mark.parametrize(
    "method", [Method.LIST_MODELS, Method.GET_MODEL, Method.LOAD_MODEL, Method.SET_MODEL_LABEL, Method.CHECK]
)
def test_methods_without_text_are_called_too(method: Method) -> None:
    record = made(call(method), lambda *_: b"")

    assert (record.outcome, record.num_target_tokens, record.queue_s) == (Outcome.ANSWERED, 0, None)


def test_waiting_and_deadline_count_from_the_planned_moment() -> None:
    in_time = made(call(Method.TRANSLATE), answer, ago_s=5.0)
    too_late = made(call(Method.TRANSLATE, timeout_s=4.0), answer, ago_s=5.0)

    assert in_time.outcome is Outcome.ANSWERED
    assert in_time.latency_s >= in_time.lag_s >= 5.0
    assert (too_late.outcome, too_late.status) == (Outcome.LATE, "DEADLINE_EXCEEDED at the caller")


@pytest.mark.parametrize("method", [Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM])
def test_a_caller_leaves_when_planned(method: Method) -> None:
    has_left = threading.Event()

    def wait(_: Any, context: grpc.ServicerContext) -> bytes:
        context.add_callback(has_left.set)
        assert has_left.wait(PATIENCE_S)
        return b""

    def wait_before_the_first(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield wait(request, context)

    handler = wait if method is Method.TRANSLATE else wait_before_the_first
    record = made(call(method, leave_after_s=0.01), handler)

    assert (record.outcome, record.status, record.first_s) == (Outcome.LEFT, "CANCELLED", None)


def test_a_call_that_nobody_left_is_answered_or_an_error() -> None:
    def cancel(_: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.CANCELLED, "no")

    assert made(call(Method.TRANSLATE, leave_after_s=PATIENCE_S), answer).outcome is Outcome.ANSWERED
    assert made(call(Method.TRANSLATE), cancel).outcome is Outcome.ERROR


def test_a_document_is_noted_with_its_first_sentence_and_all_tokens() -> None:
    def sentences(*_: Any) -> Iterator[bytes]:
        for decode_s in (2, 1):
            sentence = pb.Sentence(num_source_tokens=5, num_target_tokens=6)
            timings = pb.StageTimings(decode=Duration(seconds=decode_s))
            yield pb.TranslatedSentence(sentence=sentence, timings=timings).SerializeToString()

    record = made(call(Method.TRANSLATE_DOCUMENT), sentences)

    assert (record.num_source_tokens, record.num_target_tokens, record.decode_s) == (10, 12, 2.0)
    assert record.first_s is not None
    assert record.sent_s <= record.first_s <= record.ended_s


def test_a_document_that_breaks_off_keeps_what_arrived() -> None:
    def break_off(_: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield pb.TranslatedSentence(sentence=pb.Sentence(num_target_tokens=6)).SerializeToString()
        context.abort(grpc.StatusCode.INTERNAL, "no")

    record = made(call(Method.TRANSLATE_DOCUMENT), break_off)

    assert (record.outcome, record.status, record.num_target_tokens) == (Outcome.ERROR, "INTERNAL", 6)


def test_each_request_of_a_stream_must_be_answered() -> None:
    def echo(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for _request in requests:
            yield answer()

    def lose_one(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from list(echo(requests, context))[1:]

    failed = pb.TranslateResponse(error=status_pb2.Status(code=code_pb2.INTERNAL)).SerializeToString()
    stream = call(Method.TRANSLATE_STREAM, num_messages=3)

    whole, lossy, broken = (made(stream, handler) for handler in (echo, lose_one, lambda *_: iter([failed] * 3)))

    assert (whole.outcome, whole.num_target_tokens) == (Outcome.ANSWERED, 12)
    assert (lossy.outcome, lossy.status) == (Outcome.ERROR, "OK, 2 answers to 3 requests")
    assert (broken.outcome, broken.status) == (Outcome.ERROR, "OK, INTERNAL within")


def test_a_key_is_sent_over_an_encrypted_connection(tmp_path: Path) -> None:
    authority = Authority()
    leaf = authority.sign(NAME)
    credentials = grpc.ssl_server_credentials([(key_pem(leaf), chain_pem(leaf))])
    seen: list[str] = []

    def note(_: Any, context: grpc.ServicerContext) -> bytes:
        seen.extend(str(value) for key, value in context.invocation_metadata() if key == "authorization")
        return answer()

    with (
        fake_translator({"Translate": note}, credentials=credentials) as target,
        Client(target, Access(key="secret", ca_file=authority.write(tmp_path / "ca.pem"))) as connection,
    ):
        record = connection.make(call(Method.TRANSLATE), time.monotonic())

    assert (record.outcome, seen) == (Outcome.ANSWERED, ["Bearer secret"])


def test_nobody_there_is_told_in_time() -> None:
    with pytest.raises(ConnectionError, match="localhost:1: no connection within"):
        Client("localhost:1", timeout_s=0.05)
