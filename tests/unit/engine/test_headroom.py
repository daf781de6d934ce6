from service.engine.forecast import Headroom

LEAST = 2.5


def test_few_answers_say_nothing() -> None:
    headroom = Headroom()
    for _ in range(15):
        headroom.record(predicted_s=1.0, actual_s=3.0)

    assert headroom.factor == LEAST

    headroom.record(predicted_s=1.0, actual_s=3.0)

    assert headroom.factor == 3.0


def test_the_slowest_of_the_latest_answers_counts_until_it_is_forgotten() -> None:
    headroom = Headroom()
    headroom.record(predicted_s=1.0, actual_s=3.5)
    for _ in range(127):
        headroom.record(predicted_s=1.0, actual_s=0.9)

    assert headroom.factor == 3.5

    headroom.record(predicted_s=1.0, actual_s=2.75)

    assert headroom.factor == 2.75


def test_answers_earlier_than_forecast_take_no_room_away() -> None:
    headroom = Headroom()
    for _ in range(20):
        headroom.record(predicted_s=2.0, actual_s=0.5)

    assert headroom.factor == LEAST


def test_a_stall_does_not_keep_everybody_out() -> None:
    headroom = Headroom()
    for _ in range(20):
        headroom.record(predicted_s=1.0, actual_s=60.0)

    assert headroom.factor == 4.0


def test_short_forecasts_are_not_looked_at() -> None:
    headroom = Headroom()
    for _ in range(20):
        headroom.record(predicted_s=0.01, actual_s=0.05)

    assert headroom.factor == LEAST
