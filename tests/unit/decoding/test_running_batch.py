import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman_service.datatypes import SamplingConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch, check_segment
from dragoman_service.decoding.step_model import FloatArray, IntArray, StepBatch, StepOutput
from tests.batch_decoding import decode_all
from tests.fakes import EOS, FlakyModel, ToyModel, WrappedBatch, WrappedModel, make_segment

ENDLESS = ToyModel(eos_bias=-100.0)
LIMITS = ToyModel().limits


class BrokenToyModel(ToyModel):
    """Gives NaN for sources that begin with 9."""

    def next_log_probs(self, source_ids: Sequence[int], prefix: Sequence[int]) -> FloatArray:
        log_probs = super().next_log_probs(source_ids, prefix)
        return np.full_like(log_probs, np.nan) if source_ids[0] == 9 else log_probs


class CandidateCounter(WrappedModel):
    """Records the number of candidates of the first row of each segment, for each step."""

    def __init__(self, inner: ToyModel) -> None:
        super().__init__(inner)
        self.counts: list[list[int]] = []

    def new_batch(self) -> StepBatch:
        model = self

        class Batch(WrappedBatch):
            def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
                model.counts.append(np.broadcast_to(num_candidates, token_ids.shape)[:, 0].tolist())
                return super().step(token_ids, parents, num_candidates=num_candidates)

        return Batch(self, self.inner.new_batch())


def test_log_probs_and_attention_of_hypotheses_are_those_of_the_model() -> None:
    model, segment = ToyModel(), replace(make_segment(7, 8, num_hypotheses=3), wants_attention=True)
    (ended,) = decode_all(model, [segment])

    for hypothesis in ended.hypotheses:
        expected = [
            float(model.next_log_probs(segment.source_ids, hypothesis.token_ids[:step])[token])
            for step, token in enumerate(hypothesis.token_ids)
        ]
        assert list(hypothesis.token_log_probs) == expected
        assert hypothesis.log_prob == pytest.approx(math.fsum(expected))
        assert hypothesis.attention is not None
        assert np.array_equal(hypothesis.attention, model.cross_attention(segment.source_ids, hypothesis.token_ids))


def test_attention_is_computed_on_request_only() -> None:
    model = FlakyModel(ToyModel(), lambda operation: operation == "cross_attention")

    (ended,) = decode_all(model, [make_segment(7, 8, repetition_penalty=2.0)])

    assert ended.hypotheses[0].attention is None


@pytest.mark.parametrize(
    ("segments", "num_rows"),
    [
        ([make_segment(7, beam_size=3)] * 6 + [make_segment(8, beam_size=1)], [1, 3, 3, 3]),
        ([make_segment(7, beam_size=3)], [3, 3, 3, 3]),
    ],
    ids=["large batch", "small batch"],
)
def test_large_batch_starts_with_one_row_and_a_small_batch_with_all(
    segments: list[Segment], num_rows: list[int]
) -> None:
    batch = RunningBatch(ENDLESS)
    batch.start(segments)

    assert [batch.step().num_rows for _ in range(4)] == num_rows


def test_rows_shrink_when_the_widest_beam_leaves() -> None:
    batch = RunningBatch(ENDLESS)
    wide, *_ = batch.start([make_segment(7, beam_size=4), *[make_segment(8, beam_size=2)] * 9])
    reports = [batch.step(), batch.step()]

    batch.drop([wide])

    assert [report.num_rows for report in (*reports, batch.step())] == [1, 4, 2]


def test_segments_leave_when_they_end() -> None:
    batch = RunningBatch(ENDLESS)
    ids = batch.start([make_segment(7, max_target_tokens=2), make_segment(8, max_target_tokens=3)])

    reports = [batch.step() for _ in range(3)]

    assert [report.num_segments for report in reports] == [2, 2, 1]
    assert [[ended.segment_id for ended in report.ended] for report in reports] == [[], ids[:1], ids[1:]]
    assert reports[1].ended[0].num_steps == 2


def test_row_with_nan_does_not_affect_other_segments() -> None:
    broken, whole = decode_all(BrokenToyModel(), [make_segment(9), make_segment(7, 8)])

    assert (broken.hypotheses, broken.num_steps) == ((), 1)
    assert whole.hypotheses == decode_all(ToyModel(), [make_segment(7, 8)])[0].hypotheses


def invalid_segments() -> list[Segment]:
    options: dict[str, tuple[Any, ...]] = {
        "max_target_tokens": (0, 201),
        "target_prefix": ((5,) * 12, (9,), (-1,), (EOS,)),
        "suppressed_tokens": (frozenset({EOS}), frozenset({9})),
    }
    return [
        *(make_segment(7, **{name: value}) for name, values in options.items() for value in values),
        *(replace(make_segment(7), source_ids=(5,) * num_tokens) for num_tokens in (0, 65)),
    ]


@pytest.mark.parametrize("segment", invalid_segments())
def test_segments_beyond_the_limits_of_the_model_are_invalid(segment: Segment) -> None:
    with pytest.raises(ValueError, match="does not support"):
        check_segment(segment, LIMITS)


def test_number_of_candidates_depends_on_the_options() -> None:
    model = CandidateCounter(ToyModel(num_words=90, eos_bias=-100.0))
    batch = RunningBatch(model)
    batch.start([make_segment(7)])
    batch.step()
    batch.start([make_segment(8, suppressed_tokens=frozenset(range(10, 40)), max_target_tokens=2)])
    batch.step()
    batch.start([make_segment(8, beam_size=1, sampling=SamplingConfig(), max_target_tokens=1)])
    batch.step()
    batch.step()

    assert model.counts == [[8], [8, 40], [8, 40, 94], [8]]
