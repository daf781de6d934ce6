from collections import Counter

from loadtests.cancellations.plan import Method, Moment, planned_calls


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    assert list(planned_calls(list(Method), 50, 1)) == list(planned_calls(list(Method), 50, 1))
    assert list(planned_calls(list(Method), 50, 1)) != list(planned_calls(list(Method), 50, 2))


def test_methods_take_turns_and_each_meets_every_moment() -> None:
    calls = list(planned_calls(list(Method), 600, 1))

    assert Counter(call.method for call in calls) == dict.fromkeys(Method, 200)
    assert len({(call.method, call.moment) for call in calls}) == len(Method) * len(Moment)


def test_callers_leave_within_the_time_of_their_moment() -> None:
    ranges = {
        Moment.AT_ONCE: (0.0, 0.0),
        Moment.WAITING: (0.0, 0.1),
        Moment.DECODING: (0.0, 1.0),
        Moment.ANSWERING: (0.8, 1.2),
        Moment.NEVER: (0.0, 0.0),
    }

    for call in planned_calls([Method.UNARY], 300, 1):
        lowest, highest = ranges[call.moment]
        assert lowest <= call.delay_share <= highest


def test_a_stream_whose_caller_stays_is_half_closed() -> None:
    calls = list(planned_calls([Method.STREAM], 300, 1))

    assert all(call.half_closes for call in calls if call.moment is Moment.NEVER)
    assert {call.half_closes for call in calls if call.moment is Moment.DECODING} == {True, False}
