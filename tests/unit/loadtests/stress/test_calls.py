import random

import grpc
import pytest

from loadtests.stress.callers import reply_of
from loadtests.stress.calls import Moment, Pace, draw_moment
from service.errors import DeadlineExceededError, DragomanError, InvalidFieldError, ModelNotFoundError
from tests.fakes import ManualClock
from tests.unit.loadtests.fake_calls import EndedCall


@pytest.mark.parametrize(("rate_per_s", "waits_s"), [(4.0, [0.0, 0.25, 0.5]), (None, [0.0, 0.0, 0.0])])
def test_calls_are_spaced_evenly_and_what_was_missed_is_not_made_up_for(
    rate_per_s: float | None, waits_s: list[float]
) -> None:
    clock = ManualClock()
    pace = Pace(rate_per_s, clock=clock)

    assert [pace.wait_s() for _ in range(3)] == pytest.approx(waits_s)
    clock.advance(10.0)
    assert [pace.wait_s() for _ in range(2)] == pytest.approx(waits_s[:2])


class CancelledCall(EndedCall):
    """Its caller cancelled while the status of the server came."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidFieldError("texts", "none", "one"), "INVALID_ARGUMENT"),
        (ModelNotFoundError("model", "unknown", ()), "NOT_FOUND"),
        (DeadlineExceededError("queue"), "DEADLINE_EXCEEDED"),
        (None, "OK"),
    ],
)
def test_a_status_of_the_server_is_known_by_its_details(error: DragomanError | None, status: str) -> None:
    found = reply_of(EndedCall(error), [b"answer"], began_s=0.0)

    assert (found.status, found.is_of_server) == (status, True)


@pytest.mark.parametrize(
    "call",
    [
        EndedCall(code=grpc.StatusCode.DEADLINE_EXCEEDED),
        EndedCall(code=grpc.StatusCode.UNAVAILABLE),
        CancelledCall(InvalidFieldError("texts", "none", "one")),
    ],
)
def test_a_status_of_the_client_has_none_and_is_always_that_of_a_cancellation(call: EndedCall) -> None:
    assert not reply_of(call, [], began_s=0.0).is_of_server


def test_callers_cancel_within_the_time_of_their_moment() -> None:
    ranges = {Moment.WAITING: (0.0, 0.1), Moment.DECODING: (0.0, 1.0), Moment.ANSWERING: (0.8, 1.2)}
    generator = random.Random(1)  # noqa: S311 - not for secrets
    drawn = [draw_moment(generator) for _ in range(300)]

    assert {moment for moment, _ in drawn} == set(Moment)
    for moment, share in drawn:
        lowest, highest = ranges.get(moment, (0.0, 0.0))
        assert lowest <= share <= highest
    assert Moment.NEVER not in {draw_moment(generator, may_wait=False)[0] for _ in range(300)}
