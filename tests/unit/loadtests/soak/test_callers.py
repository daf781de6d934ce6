import grpc
import pytest

from loadtests.soak.callers import UsualTimes, seen
from loadtests.wire import Method
from service.errors import DeadlineExceededError, DragomanError, InvalidFieldError, ModelNotFoundError
from tests.unit.loadtests.fake_calls import EndedCall


class CancelledCall(EndedCall):
    """Its caller left while the server's word came."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    "error",
    [
        InvalidFieldError("texts", "none", "one"),
        ModelNotFoundError("model", "nobody", ()),
        DeadlineExceededError("queue"),
    ],
)
def test_what_the_server_says_is_known_by_its_details(error: DragomanError) -> None:
    ended = seen(EndedCall(error), [])

    assert ended.is_of_server
    assert ended.status in {"INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE])
def test_what_the_library_says_has_none(code: grpc.StatusCode) -> None:
    assert not seen(EndedCall(code=code), []).is_of_server


def test_an_answer_is_always_of_the_server_and_a_cancellation_never() -> None:
    cancelled = CancelledCall(InvalidFieldError("texts", "none", "one"))

    assert seen(EndedCall(), [b"answer"]).is_of_server
    assert not seen(cancelled, []).is_of_server


def test_the_usual_time_follows_the_answers() -> None:
    usual = UsualTimes()
    usual.learn(Method.TRANSLATE, 1.0)
    for _ in range(100):
        usual.learn(Method.TRANSLATE, 3.0)

    assert usual.of(Method.TRANSLATE) == pytest.approx(3.0, abs=0.01)
    assert usual.of(Method.TRANSLATE_STREAM) > 0
