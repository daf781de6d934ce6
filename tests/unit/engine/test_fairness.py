from service.datatypes import Priority
from service.engine.queue import FairLane, PendingSegment
from tests.fakes import make_segment


def make_pending(caller: str, work: int = 10) -> PendingSegment:
    return PendingSegment(
        segment=make_segment(7),
        priority=Priority.INTERACTIVE,
        caller=caller,
        work=work,
        admitted_at_s=0.0,
        deadline_s=100.0,
    )


def add(lane: FairLane, caller: str, *works: int) -> list[PendingSegment]:
    added = [make_pending(caller, work) for work in works]
    for pending in added:
        lane.add(pending)
    return added


def serve_all(lane: FairLane) -> str:
    """Serve what waits, one after the other; return the callers."""
    served = ""
    while lane:
        (pending,) = lane.peek(1)
        lane.serve(pending)
        served += pending.caller
    return served


def test_callers_take_turns() -> None:
    lane = FairLane()
    add(lane, "a", 10, 10, 10, 10)
    add(lane, "b", 10, 10)

    assert [pending.caller for pending in lane.peek(6)] == list("ababaa")
    assert serve_all(lane) == "ababaa"


def test_turns_are_weighed_by_work() -> None:
    lane = FairLane()
    add(lane, "a", 30, 30, 30)
    add(lane, "b", 10, 10, 10, 10, 10, 10)

    assert serve_all(lane) == "abbbabbba"


def test_a_caller_s_segments_keep_their_order() -> None:
    lane = FairLane()
    first = add(lane, "a", 5, 1, 3)

    assert lane.peek(9) == first
    assert list(lane) == first
    assert lane.oldest is first[0]


def test_one_small_request_does_not_wait_for_a_thousand_segments() -> None:
    lane = FairLane()
    add(lane, "much", *[10] * 1000)
    for _ in range(5):
        lane.serve(lane.peek(1)[0])

    (small,) = add(lane, "little", 10)

    assert small in lane.peek(2)


def test_who_was_served_while_others_waited_does_not_come_back_as_a_newcomer() -> None:
    lane = FairLane()
    add(lane, "a", *[10] * 6)
    add(lane, "b", 30)
    lane.serve(lane.peek(1)[0])
    lane.serve(lane.peek(1)[0])

    add(lane, "b", 10)

    assert serve_all(lane) == "aabaaa"


def test_a_pause_earns_nothing() -> None:
    lane = FairLane()
    add(lane, "a", *[10] * 8)
    for _ in range(4):
        lane.serve(lane.peek(1)[0])

    add(lane, "b", *[10] * 4)

    assert serve_all(lane) == "abababab"


def test_a_request_that_was_cancelled_costs_its_caller_nothing() -> None:
    lane = FairLane()
    add(lane, "a", *[10] * 3)
    for pending in add(lane, "b", *[1000] * 5):
        assert lane.drop(pending)

    add(lane, "b", 10)

    assert serve_all(lane) == "abaa"


def test_what_does_not_wait_cannot_be_dropped() -> None:
    lane = FairLane()
    (pending,) = add(lane, "a", 10)
    lane.serve(pending)

    assert not lane.drop(pending)
    assert (len(lane), lane.work, lane.num_callers, lane.held_by("a")) == (0, 0, 0, (0, 0))


def test_a_lane_knows_what_each_caller_holds() -> None:
    lane = FairLane()
    add(lane, "a", 10, 20)
    add(lane, "b", 5)

    assert (lane.held_by("a"), lane.held_by("b"), lane.held_by("c")) == ((2, 30), (1, 5), (0, 0))
    assert (len(lane), lane.work, lane.num_callers) == (3, 35, 2)


def test_before_a_request_others_are_served_no_more_than_its_caller() -> None:
    lane = FairLane()
    add(lane, "much", *[10] * 1000)
    add(lane, "little", 5)
    add(lane, "me", 20)

    assert lane.work_before("me", 30) == 20 + 50 + 5
    assert lane.work_before("newcomer", 30) == 30 + 5 + 20
    assert FairLane().work_before("me", 30) == 0


def test_callers_that_were_caught_up_with_are_forgotten() -> None:
    lane = FairLane()
    add(lane, "much", *[1] * 5000)
    for number in range(2000):
        add(lane, f"host {number}", 1)
        for pending in lane.peek(2):
            lane.serve(pending)

    assert len(lane._left_at) < 200
