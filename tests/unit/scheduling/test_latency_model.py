from collections.abc import Sequence

import pytest

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.scheduling.latency_model import (
    MAX_STEPS_PER_SOURCE_TOKEN,
    Backlog,
    DeadlineMargin,
    LatencyModel,
    LengthModel,
    MovingRatio,
)
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput
from tests.fakes import make_segment

SMALL_STEP = BatchStepOutput(num_rows=4, step_s=0.01, busy_s=0.01)
LARGE_STEP = BatchStepOutput(num_rows=32, step_s=0.04, busy_s=0.04)
SEARCH = SearchConfig(beam_size=2)
MIN_MARGIN = 2.5


def make_model(
    *outputs: BatchStepOutput, is_backlogged: bool = False, num_batches: int = 1, max_rows: int = 1000
) -> LatencyModel:
    """Return a model that has recorded outputs, each 200 times."""
    model = LatencyModel(SchedulingSettings(max_batch_segments=8, max_batch_rows=max_rows), num_batches=num_batches)
    for output in outputs:
        for _ in range(200):
            model.record_step(output, is_backlogged=is_backlogged, now_s=0.0)
    return model


def make_source(num_tokens: int, **search: int) -> Segment:
    return make_segment(*[7] * (num_tokens - 1), **{"max_target_tokens": 200, **search})


def latency_s(model: LatencyModel, *segments: Segment, backlog: Backlog | None = None) -> float:
    return model.predict(model.request_cost(segments), backlog or Backlog()).total_s


@pytest.mark.parametrize(
    ("steps_per_token", "segment", "expected"),
    [
        (None, make_source(10), 10),
        (1.5, make_source(20), 30),
        (100.0, make_source(10), 10 * MAX_STEPS_PER_SOURCE_TOKEN),
        (None, make_source(50, max_target_tokens=7), 7),
        (None, make_source(2, min_target_tokens=30), 31),
        (None, make_segment(7, target_prefix=(8,) * 9), 10),
    ],
)
def test_expected_steps_follow_the_source_within_the_limits_of_the_request(
    steps_per_token: float | None, segment: Segment, expected: int
) -> None:
    outputs = [BatchStepOutput(num_tokens=10, num_steps=round(10 * steps_per_token))] if steps_per_token else []

    cost = make_model(*outputs).request_cost([segment])

    assert cost.max_steps == expected
    assert cost.decode_cost == len(segment.source_ids) + segment.search.beam_size * expected


def test_model_without_measurements_predicts_no_latency() -> None:
    model = make_model()

    assert latency_s(model, make_source(50), backlog=Backlog(num_queued=9, decode_cost=10**6, num_running=8)) == 0.0
    assert not model.is_fresh(0.0)
    assert not model.predict(model.request_cost([make_source(50)]), Backlog()).has_throughput


def test_single_segment_takes_its_encoder_run_and_its_steps() -> None:
    model = make_model(BatchStepOutput(num_encoded_tokens=10, encode_s=0.02, num_rows=4, step_s=0.01, busy_s=0.03))

    assert latency_s(model, make_source(10)) == pytest.approx(10 * 0.002 + 10 * 0.01)


def test_merged_steps_are_recorded_one_by_one() -> None:
    steps_s = [0.01 + 0.001 * step for step in range(40)]
    merged, separate = make_model(), make_model()

    merged.record_step(
        BatchStepOutput(num_rows=4, step_s=steps_s[-1], earlier_steps_s=steps_s[:-1]), is_backlogged=False, now_s=0.0
    )
    for step_s in steps_s:
        separate.record_step(BatchStepOutput(num_rows=4, step_s=step_s), is_backlogged=False, now_s=0.0)

    assert latency_s(merged, make_source(10)) == latency_s(separate, make_source(10)) > 0


@pytest.mark.parametrize(
    ("measured", "num_segments", "step_s"),
    [
        ([SMALL_STEP, LARGE_STEP], 1, 0.01),
        ([SMALL_STEP, LARGE_STEP], 8, 0.04),
        ([SMALL_STEP], 8, 0.01),  # larger than measured: assumed to be as fast
        ([LARGE_STEP], 1, 0.04 / 8),  # smaller than measured: assumed to be proportionally faster
    ],
)
def test_step_takes_as_long_as_measured_steps_of_its_size(
    measured: Sequence[BatchStepOutput], num_segments: int, step_s: float
) -> None:
    assert latency_s(make_model(*measured), *[make_source(10)] * num_segments) == pytest.approx(10 * step_s)


def test_queued_request_waits_until_all_batches_have_drained_the_backlog() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True, num_batches=2)
    s_per_cost = 0.04 / 32 / 2

    latency = latency_s(model, make_source(10), backlog=Backlog(num_queued=100, decode_cost=5000, num_running=16))

    assert latency == pytest.approx((5000 + 50) * s_per_cost + 10 * 0.04)


def test_request_that_fits_into_a_batch_does_not_wait() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True)

    assert latency_s(model, *[make_source(10)] * 4, backlog=Backlog(num_running=4)) == pytest.approx(10 * 0.04)


def test_request_of_several_batches_waits_for_itself() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True)

    expected_s = (1 - 8 / 80) * 80 * 50 * 0.04 / 32 + 10 * 0.04
    assert latency_s(model, *[make_source(10)] * 80) == pytest.approx(expected_s)


def test_steps_without_a_backlog_do_not_measure_throughput() -> None:
    model = make_model(SMALL_STEP)

    assert model.drain_time_s(1000) == 0.0
    assert model.retry_delay_s(50.0) == 1.0


def test_one_stall_changes_predictions_little() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True)
    backlog = Backlog(num_queued=100, decode_cost=5000, num_running=8)
    before_s = latency_s(model, make_source(10), backlog=backlog)

    model.record_step(BatchStepOutput(num_rows=32, step_s=60.0, busy_s=60.0), is_backlogged=True, now_s=0.0)

    assert latency_s(model, make_source(10), backlog=backlog) == pytest.approx(before_s, rel=0.05)


def test_wide_beam_uses_the_room_of_several_segments() -> None:
    model = make_model(LARGE_STEP, is_backlogged=True, max_rows=16)

    wide, narrow = (latency_s(model, *[make_source(10, beam_size=size)] * 2) for size in (16, 8))

    assert wide > narrow


def test_measurements_are_fresh_for_ten_seconds() -> None:
    model = make_model(SMALL_STEP)

    assert model.is_fresh(10.0)
    assert not model.is_fresh(10.1)


def make_ratio(*samples: float, times: int = 200) -> MovingRatio:
    ratio = MovingRatio()
    for _ in range(times):
        for sample in samples:
            ratio.record(sample, per=1)
    return ratio


def test_ratio_needs_32_samples() -> None:
    assert make_ratio(1.0, times=31).value is None
    assert make_ratio(1.0, times=32).value == 1.0


def test_ratio_divides_the_sums() -> None:
    ratio = MovingRatio()
    for _ in range(100):
        ratio.record(1.0, per=1)
        ratio.record(9.0, per=3)

    assert ratio.value == pytest.approx(10 / 4, rel=0.02)


def test_outliers_change_a_ratio_little() -> None:
    late = make_ratio(0.01)
    late.record(1000.0, per=1)
    early = MovingRatio()
    for sample in (1000.0, *[0.01] * 31):
        early.record(sample, per=1)

    assert late.value == pytest.approx(0.01, rel=0.05)
    assert early.value == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_lasting_change_is_learned(factor: float) -> None:
    ratio = make_ratio(1.0)

    for _ in range(700):
        ratio.record(factor, per=1)

    assert ratio.value == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize(
    ("times", "predicted_s", "actual_s", "expected"),
    [
        (15, 1.0, 3.0, MIN_MARGIN),  # too few answers
        (16, 1.0, 3.0, 3.0),
        (20, 2.0, 0.5, MIN_MARGIN),
        (20, 1.0, 60.0, 4.0),  # a stall
        (20, 0.01, 0.05, MIN_MARGIN),  # predictions too short to count
    ],
)
def test_margin_is_the_largest_ratio_of_actual_to_predicted_time_within_limits(
    times: int, predicted_s: float, actual_s: float, expected: float
) -> None:
    margin = DeadlineMargin()
    for _ in range(times):
        margin.record(predicted_s=predicted_s, actual_s=actual_s)

    assert margin.factor == expected


def test_margin_forgets_after_128_answers() -> None:
    margin = DeadlineMargin()
    margin.record(predicted_s=1.0, actual_s=3.5)
    for _ in range(127):
        margin.record(predicted_s=1.0, actual_s=0.9)

    assert margin.factor == 3.5

    margin.record(predicted_s=1.0, actual_s=2.75)

    assert margin.factor == 2.75


def make_lengths(*, num_characters: int, sources: list[int]) -> LengthModel:
    lengths = LengthModel()
    for _ in range(100):
        lengths.record(num_characters, [make_segment(*[7] * (num_tokens - 1)) for num_tokens in sources])
    return lengths


@pytest.mark.parametrize("lengths", [LengthModel(), make_lengths(num_characters=0, sources=[10])])
def test_no_segments_are_expected_without_samples(lengths: LengthModel) -> None:
    assert lengths.expected_segments(100, SEARCH) == []


@pytest.mark.parametrize(("num_characters", "expected"), [(240, [15] * 4), (1, [1]), (5, [1])])
def test_segments_are_expected_in_proportion_to_the_text(num_characters: int, expected: list[int]) -> None:
    segments = make_lengths(num_characters=120, sources=[10, 20]).expected_segments(num_characters, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == expected
    assert {segment.search for segment in segments} == {SEARCH}
