import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.wire import Outcome
from service.errors import DeadlineExceededError, DragomanError, DrainingError, OverloadedError
from tests.unit.loadtests.fake_calls import EndedCall

OVERLOADED = OverloadedError(queued=3, limit=3, unit="segments", retry_after_s=1.5)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OVERLOADED, Outcome.REJECTED),
        (DeadlineExceededError("admission"), Outcome.REJECTED),
        (DeadlineExceededError("queue"), Outcome.LATE),
        (DeadlineExceededError("decode"), Outcome.LATE),
        (DrainingError(), Outcome.ERROR),
    ],
    ids=str,
)
def test_an_error_of_the_server_is_told_by_its_status_and_details(error: DragomanError, expected: Outcome) -> None:
    assert wire.outcome(EndedCall(error))[0] is expected


def test_an_answer_and_a_deadline_that_the_caller_noticed_need_no_details() -> None:
    late = EndedCall(code=grpc.StatusCode.DEADLINE_EXCEEDED)

    assert wire.outcome(EndedCall()) == (Outcome.ANSWERED, "OK")
    assert wire.outcome(late) == (Outcome.LATE, "DEADLINE_EXCEEDED at the caller")


@pytest.mark.parametrize("kept", [slice(0, 1), slice(1, 2)], ids=["no pushback", "no details"])
def test_a_refusal_that_does_not_say_when_to_come_back_is_an_error(kept: slice) -> None:
    call = EndedCall(OVERLOADED)
    call.trailing = call.trailing[kept]

    assert wire.outcome(call) == (Outcome.ERROR, "RESOURCE_EXHAUSTED without a time")


def test_requests_are_the_same_for_the_same_seed_and_have_so_many_texts() -> None:
    requests = wire.translate_requests(7, count=3, texts=5)

    assert requests == wire.translate_requests(7, count=3, texts=5)
    assert [len(pb.TranslateRequest.FromString(request).texts) for request in requests] == [5, 5, 5]
