import pytest

from service.datatypes import Segment
from service.engine.forecast import MAX_STEPS_PER_SOURCE_TOKEN, Backlog, Forecast
from service.engine.protocol import Turn
from tests.fakes import make_segment

LONE = Turn(num_rows=4, step_s=0.01, busy_s=0.01)
FULL = Turn(num_rows=32, step_s=0.04, busy_s=0.04)
IDLE = Backlog()


def make_forecast(*, num_threads: int = 1) -> Forecast:
    return Forecast(num_threads=num_threads, max_batch_segments=8, max_batch_rows=1000)


def learn(forecast: Forecast, turn: Turn, *, times: int = 200, is_backlogged: bool = False) -> None:
    for _ in range(times):
        forecast.learn(turn, is_backlogged=is_backlogged, now_s=0.0)


def make_source(num_tokens: int, **search: int) -> Segment:
    return make_segment(*[7] * (num_tokens - 1), **{"max_target_tokens": 200, **search})


def finish_in_s(forecast: Forecast, *segments: Segment, backlog: Backlog = IDLE) -> float:
    return forecast.finish_in_s(forecast.demand(segments), backlog)


def test_work_is_the_source_and_a_step_of_every_row_for_each_of_its_tokens() -> None:
    assert make_forecast().expected_work(make_source(10, beam_size=4)) == 10 + 4 * 10


def test_the_steps_for_each_source_token_are_learned() -> None:
    forecast = make_forecast()

    learn(forecast, Turn(num_tokens=10, num_steps=15))

    assert forecast.steps_per_source_token == pytest.approx(1.5)
    assert forecast.expected_steps(make_source(20)) == 30


def test_a_source_token_counts_for_a_bounded_number_of_steps() -> None:
    forecast = make_forecast()

    learn(forecast, Turn(num_tokens=1, num_steps=100))

    assert forecast.expected_steps(make_source(10)) == 10 * MAX_STEPS_PER_SOURCE_TOKEN


def test_the_target_limit_bounds_the_steps() -> None:
    assert make_forecast().expected_steps(make_source(50, max_target_tokens=7)) == 7


def test_a_length_that_the_caller_forces_counts() -> None:
    forecast = make_forecast()

    assert forecast.expected_steps(make_source(2, min_target_tokens=30)) == 31
    assert forecast.expected_steps(make_segment(7, target_prefix=(8,) * 9)) == 10


def test_a_server_that_has_done_nothing_yet_expects_no_time_and_convinces_nobody() -> None:
    forecast = make_forecast()

    assert finish_in_s(forecast, make_source(50), backlog=Backlog(num_waiting=9, work=10**6, num_running=8)) == 0.0
    assert not forecast.is_convincing(0.0)


def test_a_lone_segment_takes_its_encoder_run_and_its_steps() -> None:
    forecast = make_forecast()
    learn(forecast, Turn(num_encoded_tokens=10, encode_s=0.02, num_rows=4, step_s=0.01, busy_s=0.03))

    assert finish_in_s(forecast, make_source(10)) == pytest.approx(10 * 0.002 + 10 * 0.01)


def test_a_step_of_a_larger_batch_takes_as_long_as_such_steps_took() -> None:
    forecast = make_forecast()
    learn(forecast, LONE)
    learn(forecast, FULL)

    assert finish_in_s(forecast, make_source(10)) == pytest.approx(0.1)
    assert finish_in_s(forecast, *[make_source(10)] * 8) == pytest.approx(0.4)


def test_a_batch_larger_than_any_seen_is_taken_to_be_as_fast_as_the_largest() -> None:
    forecast = make_forecast()
    learn(forecast, LONE)

    assert finish_in_s(forecast, *[make_source(10)] * 8) == pytest.approx(0.1)


def test_a_batch_smaller_than_any_seen_is_taken_to_be_faster_in_proportion() -> None:
    forecast = make_forecast()
    learn(forecast, FULL)

    assert finish_in_s(forecast, make_source(10)) == pytest.approx(10 * 0.04 / 8)


def test_behind_a_backlog_a_request_waits_until_it_is_worked_off_by_all_threads() -> None:
    forecast = make_forecast(num_threads=2)
    learn(forecast, FULL, is_backlogged=True)
    s_per_work = 0.04 / 32 / 2

    behind = finish_in_s(forecast, make_source(10), backlog=Backlog(num_waiting=100, work=5000, num_running=16))

    assert behind == pytest.approx((5000 + 50) * s_per_work + 10 * 0.04)


def test_what_finds_a_place_in_a_batch_does_not_wait() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)

    assert finish_in_s(forecast, *[make_source(10)] * 4, backlog=Backlog(num_running=4)) == pytest.approx(10 * 0.04)


def test_a_request_of_several_batches_waits_for_itself() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)
    num_segments, work = 80, 80 * 50

    expected_s = (1 - 8 / num_segments) * work * 0.04 / 32 + 10 * 0.04
    assert finish_in_s(forecast, *[make_source(10)] * num_segments) == pytest.approx(expected_s)


def test_turns_that_left_nobody_waiting_say_nothing_of_the_rate() -> None:
    forecast = make_forecast()

    learn(forecast, LONE, is_backlogged=False)

    assert forecast.working_off_s(1000) == 0.0
    assert forecast.retry_after_s(excess_s=50.0) == 1.0


def test_one_stall_does_not_change_what_is_expected() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)
    backlog = Backlog(num_waiting=100, work=5000, num_running=8)
    before = finish_in_s(forecast, make_source(10), backlog=backlog)

    learn(forecast, Turn(num_rows=32, step_s=60.0, busy_s=60.0), times=1, is_backlogged=True)

    assert finish_in_s(forecast, make_source(10), backlog=backlog) == pytest.approx(before, rel=0.05)


def test_a_wide_beam_takes_the_places_of_several() -> None:
    forecast = Forecast(num_threads=1, max_batch_segments=8, max_batch_rows=16)
    learn(forecast, FULL, is_backlogged=True)

    assert finish_in_s(forecast, *[make_source(10, beam_size=16)] * 2) > finish_in_s(
        forecast, *[make_source(10, beam_size=8)] * 2
    )


def test_old_evidence_convinces_nobody() -> None:
    forecast = make_forecast()
    learn(forecast, LONE)

    assert forecast.is_convincing(10.0)
    assert not forecast.is_convincing(10.1)
