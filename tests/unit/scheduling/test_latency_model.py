import pytest

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.scheduling.latency_model import (
    MAX_STEPS_PER_SOURCE_TOKEN,
    DeadlineMargin,
    Estimate,
    Forecast,
    LengthEstimate,
    WorkAhead,
)
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput
from tests.fakes import make_segment

LONE = BatchStepOutput(num_rows=4, step_s=0.01, busy_s=0.01)
FULL = BatchStepOutput(num_rows=32, step_s=0.04, busy_s=0.04)
IDLE = WorkAhead()
LEAST_MARGIN = 2.5
SEARCH = SearchConfig(beam_size=2)


def make_forecast(*, num_batches: int = 1) -> Forecast:
    return Forecast(SchedulingSettings(max_batch_segments=8, max_batch_rows=1000), num_batches=num_batches)


def learn(forecast: Forecast, output: BatchStepOutput, *, times: int = 200, is_backlogged: bool = False) -> None:
    for _ in range(times):
        forecast.learn(output, is_backlogged=is_backlogged, now_s=0.0)


def make_source(num_tokens: int, **search: int) -> Segment:
    return make_segment(*[7] * (num_tokens - 1), **{"max_target_tokens": 200, **search})


def finish_in_s(forecast: Forecast, *segments: Segment, ahead: WorkAhead = IDLE) -> float:
    return forecast.predict(forecast.request_cost(segments), ahead).total_s


def test_work_is_the_source_and_a_step_of_every_row_for_each_of_its_tokens() -> None:
    assert make_forecast().request_cost([make_source(10, beam_size=4)]).works[0] == 10 + 4 * 10


def test_the_steps_for_each_source_token_are_learned() -> None:
    forecast = make_forecast()

    learn(forecast, BatchStepOutput(num_tokens=10, num_steps=15))

    assert forecast.steps_per_source_token == pytest.approx(1.5)
    assert forecast.expected_steps(make_source(20)) == 30


def test_a_source_token_counts_for_a_bounded_number_of_steps() -> None:
    forecast = make_forecast()

    learn(forecast, BatchStepOutput(num_tokens=1, num_steps=100))

    assert forecast.expected_steps(make_source(10)) == 10 * MAX_STEPS_PER_SOURCE_TOKEN


def test_the_target_limit_bounds_the_steps() -> None:
    assert make_forecast().expected_steps(make_source(50, max_target_tokens=7)) == 7


def test_a_length_that_the_caller_forces_counts() -> None:
    forecast = make_forecast()

    assert forecast.expected_steps(make_source(2, min_target_tokens=30)) == 31
    assert forecast.expected_steps(make_segment(7, target_prefix=(8,) * 9)) == 10


def test_a_server_that_has_done_nothing_yet_expects_no_time_and_rejects_nothing() -> None:
    forecast = make_forecast()

    assert finish_in_s(forecast, make_source(50), ahead=WorkAhead(num_waiting=9, work=10**6, num_running=8)) == 0.0
    assert not forecast.is_convincing(0.0)


def test_a_lone_segment_takes_its_encoder_run_and_its_steps() -> None:
    forecast = make_forecast()
    learn(forecast, BatchStepOutput(num_encoded_tokens=10, encode_s=0.02, num_rows=4, step_s=0.01, busy_s=0.03))

    assert finish_in_s(forecast, make_source(10)) == pytest.approx(10 * 0.002 + 10 * 0.01)


def test_steps_that_are_told_together_count_one_by_one() -> None:
    together, apart = make_forecast(), make_forecast()
    steps_s = [0.01 + 0.001 * step for step in range(40)]

    learn(together, BatchStepOutput(num_rows=4, step_s=steps_s[-1], earlier_steps_s=steps_s[:-1]), times=1)
    for step_s in steps_s:
        learn(apart, BatchStepOutput(num_rows=4, step_s=step_s), times=1)

    assert finish_in_s(together, make_source(10)) == finish_in_s(apart, make_source(10)) > 0


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
    forecast = make_forecast(num_batches=2)
    learn(forecast, FULL, is_backlogged=True)
    s_per_work = 0.04 / 32 / 2

    behind = finish_in_s(forecast, make_source(10), ahead=WorkAhead(num_waiting=100, work=5000, num_running=16))

    assert behind == pytest.approx((5000 + 50) * s_per_work + 10 * 0.04)


def test_what_finds_a_place_in_a_batch_does_not_wait() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)

    assert finish_in_s(forecast, *[make_source(10)] * 4, ahead=WorkAhead(num_running=4)) == pytest.approx(10 * 0.04)


def test_a_request_of_several_batches_waits_for_itself() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)
    num_segments, work = 80, 80 * 50

    expected_s = (1 - 8 / num_segments) * work * 0.04 / 32 + 10 * 0.04
    assert finish_in_s(forecast, *[make_source(10)] * num_segments) == pytest.approx(expected_s)


def test_steps_that_left_nothing_waiting_say_nothing_of_the_rate() -> None:
    forecast = make_forecast()

    learn(forecast, LONE, is_backlogged=False)

    assert forecast.work_done_in_s(1000) == 0.0
    assert forecast.retry_after_s(excess_s=50.0) == 1.0


def test_one_stall_does_not_change_what_is_expected() -> None:
    forecast = make_forecast()
    learn(forecast, FULL, is_backlogged=True)
    backlog = WorkAhead(num_waiting=100, work=5000, num_running=8)
    before = finish_in_s(forecast, make_source(10), ahead=backlog)

    learn(forecast, BatchStepOutput(num_rows=32, step_s=60.0, busy_s=60.0), times=1, is_backlogged=True)

    assert finish_in_s(forecast, make_source(10), ahead=backlog) == pytest.approx(before, rel=0.05)


def test_a_wide_beam_takes_the_places_of_several() -> None:
    forecast = Forecast(SchedulingSettings(max_batch_segments=8, max_batch_rows=16), num_batches=1)
    learn(forecast, FULL, is_backlogged=True)

    assert finish_in_s(forecast, *[make_source(10, beam_size=16)] * 2) > finish_in_s(
        forecast, *[make_source(10, beam_size=8)] * 2
    )


def test_old_evidence_rejects_nothing() -> None:
    forecast = make_forecast()
    learn(forecast, LONE)

    assert forecast.is_convincing(10.0)
    assert not forecast.is_convincing(10.1)


def learned_estimate(value: float, *, times: int = 200) -> Estimate:
    estimate = Estimate()
    for _ in range(times):
        estimate.record(value, per=1)
    return estimate


def test_nothing_is_said_before_enough_was_observed() -> None:
    estimate = Estimate()

    assert estimate.value is None
    for _ in range(31):
        estimate.record(1.0, per=1)
    assert estimate.value is None
    estimate.record(1.0, per=1)
    assert estimate.value == 1.0


def test_a_ratio_is_that_of_the_sums() -> None:
    estimate = Estimate()
    for _ in range(100):
        estimate.record(1.0, per=1)
        estimate.record(9.0, per=3)

    assert estimate.value == pytest.approx(10 / 4, rel=0.02)


def test_one_stall_changes_little() -> None:
    estimate = learned_estimate(0.01)

    estimate.record(1000.0, per=1)

    assert estimate.value == pytest.approx(0.01, rel=0.05)


def test_one_stall_among_the_first_changes_little() -> None:
    estimate = Estimate()
    estimate.record(1000.0, per=1)
    for _ in range(31):
        estimate.record(0.01, per=1)

    assert estimate.value == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_lasting_change_is_learned(factor: float) -> None:
    estimate = learned_estimate(1.0)

    for _ in range(700):
        estimate.record(factor, per=1)

    assert estimate.value == pytest.approx(factor, rel=0.05)


def test_few_answers_say_nothing() -> None:
    margin = DeadlineMargin()
    for _ in range(15):
        margin.record(predicted_s=1.0, actual_s=3.0)

    assert margin.factor == LEAST_MARGIN

    margin.record(predicted_s=1.0, actual_s=3.0)

    assert margin.factor == 3.0


def test_the_slowest_of_the_latest_answers_counts_until_it_is_forgotten() -> None:
    margin = DeadlineMargin()
    margin.record(predicted_s=1.0, actual_s=3.5)
    for _ in range(127):
        margin.record(predicted_s=1.0, actual_s=0.9)

    assert margin.factor == 3.5

    margin.record(predicted_s=1.0, actual_s=2.75)

    assert margin.factor == 2.75


def test_answers_earlier_than_forecast_take_nothing_away() -> None:
    margin = DeadlineMargin()
    for _ in range(20):
        margin.record(predicted_s=2.0, actual_s=0.5)

    assert margin.factor == LEAST_MARGIN


def test_a_stall_does_not_keep_everybody_out() -> None:
    margin = DeadlineMargin()
    for _ in range(20):
        margin.record(predicted_s=1.0, actual_s=60.0)

    assert margin.factor == 4.0


def test_short_forecasts_are_not_looked_at() -> None:
    margin = DeadlineMargin()
    for _ in range(20):
        margin.record(predicted_s=0.01, actual_s=0.05)

    assert margin.factor == LEAST_MARGIN


def learned_lengths(*, num_characters: int, sources: list[int]) -> LengthEstimate:
    lengths = LengthEstimate()
    for _ in range(100):
        lengths.learn(num_characters, [make_segment(*[7] * (num_tokens - 1)) for num_tokens in sources])
    return lengths


def test_nothing_is_guessed_before_anything_was_seen() -> None:
    assert LengthEstimate().expected_segments(100, SEARCH) == []


def test_nothing_is_learned_from_segments_of_unknown_texts() -> None:
    assert learned_lengths(num_characters=0, sources=[10]).expected_segments(100, SEARCH) == []


def test_a_text_is_expected_to_become_what_such_texts_became() -> None:
    segments = learned_lengths(num_characters=120, sources=[10, 20]).expected_segments(240, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == [15] * 4
    assert {segment.search for segment in segments} == {SEARCH}


@pytest.mark.parametrize("num_characters", [1, 5])
def test_the_shortest_text_is_one_segment(num_characters: int) -> None:
    segments = learned_lengths(num_characters=120, sources=[10, 20]).expected_segments(num_characters, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == [max(1, round(num_characters / 4))]
