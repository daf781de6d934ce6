import random

import grpc
import pytest

from loadtests.stress.callers import reply_of
from loadtests.stress.calls import Moment, Pace, draw_moment
from service.errors import DeadlineExceededError, DragomanError, InvalidFieldError, ModelNotFoundError
from tests.fakes import ManualClock
from tests.unit.loadtests.fake_calls import EndedCall


def test_calls_are_spaced_evenly() -> None:
    pace = Pace(4.0, clock=ManualClock())

    assert [pace.wait_s() for _ in range(3)] == pytest.approx([0.0, 0.25, 0.5])


def test_what_was_missed_is_not_made_up_for() -> None:
    clock = ManualClock()
    pace = Pace(4.0, clock=clock)
    pace.wait_s()
    clock.advance(10.0)

    assert [pace.wait_s() for _ in range(2)] == pytest.approx([0.0, 0.25])


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None, clock=ManualClock())

    assert [pace.wait_s() for _ in range(3)] == [0.0, 0.0, 0.0]


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
    found = reply_of(EndedCall(error), [], began_s=0.0)

    assert found.is_of_server
    assert found.status in {"INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE])
def test_what_the_library_says_has_none(code: grpc.StatusCode) -> None:
    assert not reply_of(EndedCall(code=code), [], began_s=0.0).is_of_server


def test_an_answer_is_always_of_the_server_and_a_cancellation_never() -> None:
    cancelled = CancelledCall(InvalidFieldError("texts", "none", "one"))

    assert reply_of(EndedCall(), [b"answer"], began_s=0.0).is_of_server
    assert not reply_of(cancelled, [], began_s=0.0).is_of_server


def test_callers_cancel_within_the_time_of_their_moment() -> None:
    ranges = {
        Moment.AT_ONCE: (0.0, 0.0),
        Moment.WAITING: (0.0, 0.1),
        Moment.DECODING: (0.0, 1.0),
        Moment.ANSWERING: (0.8, 1.2),
        Moment.NEVER: (0.0, 0.0),
    }
    generator = random.Random(1)  # noqa: S311 - not for secrets
    drawn = [draw_moment(generator) for _ in range(300)]

    assert {moment for moment, _ in drawn} == set(Moment)
    assert all(ranges[moment][0] <= share <= ranges[moment][1] for moment, share in drawn)
    assert Moment.NEVER not in {draw_moment(generator, may_wait=False)[0] for _ in range(300)}
