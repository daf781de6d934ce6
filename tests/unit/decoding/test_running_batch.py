import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dragoman_service.datatypes import Hypothesis, SamplingConfig, Segment
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import RunningBatch, check_segment
from dragoman_service.decoding.step_model import FloatArray, IntArray, StepBatch, StepModel, StepOutput
from tests.fakes import BOS, EOS, PAD, UNK, FlakyModel, ToyModel, WrappedBatch, WrappedModel, make_segment


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


def decode(model: StepModel, *segments: Segment) -> list[EndedSegment]:
    """Decode segments together and return them in order."""
    batch = RunningBatch(model)
    batch.start(segments)
    ended: list[EndedSegment] = []
    while batch.num_segments:
        ended += batch.step().ended
    return sorted(ended, key=lambda segment: segment.segment_id)


def decode_one(model: StepModel, segment: Segment) -> tuple[Hypothesis, ...]:
    return decode(model, segment)[0].hypotheses


def test_hypotheses_are_distinct_and_sorted_best_first() -> None:
    hypotheses = decode_one(ToyModel(), make_segment(7, 8, beam_size=4, num_hypotheses=4))

    assert len({hypothesis.token_ids for hypothesis in hypotheses}) == 4
    assert all(better.score >= worse.score for better, worse in pairwise(hypotheses))


def test_token_log_probs_equal_those_of_the_model() -> None:
    model, segment = ToyModel(), make_segment(7, 8, num_hypotheses=3)

    for hypothesis in decode_one(model, segment):
        expected = [
            float(model.next_log_probs(segment.source_ids, hypothesis.token_ids[:step])[token])
            for step, token in enumerate(hypothesis.token_ids)
        ]

        assert list(hypothesis.token_log_probs) == expected
        assert hypothesis.log_prob == pytest.approx(math.fsum(expected))


def test_eos_is_the_only_special_token_and_the_last() -> None:
    for seed in range(20):
        for hypothesis in decode_one(ToyModel(seed=seed), make_segment(7, num_hypotheses=4, max_target_tokens=100)):
            assert hypothesis.is_finished
            assert hypothesis.token_ids[-1] == EOS
            assert not {PAD, BOS, UNK, EOS} & set(hypothesis.token_ids[:-1])


@pytest.mark.parametrize("min_target_tokens", [0, 1, 5])
def test_target_has_the_minimum_length(min_target_tokens: int) -> None:
    segment = make_segment(7, min_target_tokens=min_target_tokens, max_target_tokens=30)

    best = decode_one(ToyModel(eos_bias=10.0), segment)[0]

    assert len(best.token_ids) == min_target_tokens + 1


def test_hypotheses_cut_off_by_the_longest_target_are_unfinished() -> None:
    hypotheses = decode_one(ToyModel(eos_bias=-100.0), make_segment(7, num_hypotheses=2, max_target_tokens=6))

    assert [len(hypothesis.token_ids) for hypothesis in hypotheses] == [6, 6]
    assert not any(hypothesis.is_finished for hypothesis in hypotheses)


def test_unfinished_hypotheses_follow_the_finished_ones() -> None:
    segment = make_segment(7, beam_size=4, num_hypotheses=4, min_target_tokens=2, max_target_tokens=3)

    hypotheses = decode_one(ToyModel(eos_bias=2.0), segment)

    kinds = [hypothesis.is_finished for hypothesis in hypotheses]
    assert len(kinds) == 4
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {True, False}


def test_empty_target_is_one_eos() -> None:
    best = decode_one(ToyModel(eos_bias=50.0), make_segment(7))[0]

    assert best.token_ids == (EOS,)


def test_large_batch_starts_with_one_row_and_has_at_most_the_widest_beam() -> None:
    batch = RunningBatch(ToyModel(eos_bias=-100.0))
    batch.start([make_segment(7, beam_size=3)] * 6 + [make_segment(8, beam_size=1)])

    assert [batch.step().num_rows for _ in range(4)] == [1, 3, 3, 3]


def test_small_batch_has_all_rows_from_the_first_step_on() -> None:
    batch = RunningBatch(ToyModel(eos_bias=-100.0))
    batch.start([make_segment(7, beam_size=3)])

    assert [batch.step().num_rows for _ in range(3)] == [3, 3, 3]


def test_rows_shrink_when_the_widest_beam_leaves() -> None:
    batch = RunningBatch(ToyModel(eos_bias=-100.0))
    wide, *_ = batch.start([make_segment(7, beam_size=4), *[make_segment(8, beam_size=2)] * 9])
    reports = [batch.step(), batch.step()]

    batch.drop([wide])

    assert [report.num_rows for report in (*reports, batch.step())] == [1, 4, 2]


def test_segments_leave_when_they_end() -> None:
    batch = RunningBatch(ToyModel(eos_bias=-100.0))
    handles = batch.start([make_segment(7, max_target_tokens=2), make_segment(8, max_target_tokens=3)])

    reports = [batch.step() for _ in range(3)]

    assert [report.num_segments for report in reports] == [2, 2, 1]
    assert [[ended.segment_id for ended in report.ended] for report in reports] == [[], handles[:1], handles[1:]]
    assert reports[1].ended[0].num_steps == 2


def test_dropped_segment_is_never_reported() -> None:
    batch = RunningBatch(ToyModel())
    first, second = batch.start([make_segment(7), make_segment(8)])
    batch.step()

    batch.drop([first])

    ended = [segment.segment_id for _ in range(12) if batch.num_segments for segment in batch.step().ended]
    assert ended == [second]


def test_emptied_batch_accepts_new_segments() -> None:
    batch, segment = RunningBatch(ToyModel()), make_segment(7, 8)
    batch.drop(batch.start([make_segment(9), make_segment(8)]))

    batch.start([segment])

    ended = [found for _ in range(12) if batch.num_segments for found in batch.step().ended]
    assert ended[0].hypotheses == decode_one(ToyModel(), segment)


def test_row_with_nan_does_not_affect_other_segments() -> None:
    broken, whole = decode(BrokenToyModel(), make_segment(9), make_segment(7, 8))

    assert broken.hypotheses == ()
    assert broken.num_steps == 1
    assert whole.hypotheses == decode_one(ToyModel(), make_segment(7, 8))


def test_beam_can_be_wider_than_the_vocabulary() -> None:
    hypotheses = decode_one(ToyModel(num_words=2), make_segment(7, beam_size=50, num_hypotheses=10))

    assert len(hypotheses) == 10


@pytest.mark.parametrize(
    "search",
    [
        {"beam_size": 0, "num_hypotheses": 0},
        {"num_hypotheses": 5},
        {"num_hypotheses": 0},
        {"max_target_tokens": 0},
        {"max_target_tokens": 201},
        {"min_target_tokens": -1},
        {"length_penalty": math.nan},
        {"length_penalty": 1e6},
        {"target_prefix": (5,) * 12},
        {"target_prefix": (9,)},
        {"target_prefix": (-1,)},
        {"target_prefix": (EOS,)},
        {"suppressed_tokens": frozenset({EOS})},
        {"suppressed_tokens": frozenset({9})},
        {"no_repeat_ngram_size": -1},
        {"repetition_penalty": 0.9},
        {"repetition_penalty": math.inf},
        {"coverage_penalty": -0.1},
        {"coverage_penalty": math.nan},
        {"beam_size": 4, "num_hypotheses": 2, "sampling": SamplingConfig()},
        {"beam_size": 1, "sampling": SamplingConfig(), "repetition_guard": True},
        {"beam_size": 1, "sampling": SamplingConfig(temperature=0.0)},
        {"beam_size": 1, "sampling": SamplingConfig(temperature=math.nan)},
        {"beam_size": 1, "sampling": SamplingConfig(top_k=0)},
        {"beam_size": 1, "sampling": SamplingConfig(top_p=0.0)},
        {"beam_size": 1, "sampling": SamplingConfig(top_p=1.1)},
        {"beam_size": 1, "sampling": SamplingConfig(seed=-1)},
    ],
)
def test_options_that_the_search_does_not_support_are_invalid(search: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not support"):
        check_segment(make_segment(7, **search), ToyModel().limits)


@pytest.mark.parametrize("num_tokens", [0, 65])
def test_sources_beyond_the_limits_of_the_model_are_invalid(num_tokens: int) -> None:
    segment = replace(make_segment(7), source_ids=(5,) * num_tokens)

    with pytest.raises(ValueError, match=f"source tokens is {num_tokens}"):
        check_segment(segment, ToyModel().limits)


def test_all_options_can_be_combined() -> None:
    options = {"target_prefix": (5, 3), "suppressed_tokens": frozenset({8}), "no_repeat_ngram_size": 2}

    check_segment(make_segment(7, **options, repetition_penalty=2.0, coverage_penalty=1.0), ToyModel().limits)
    check_segment(make_segment(7, **options, beam_size=1, sampling=SamplingConfig(top_k=10**6)), ToyModel().limits)


def test_attention_belongs_to_each_returned_hypothesis() -> None:
    model, segment = ToyModel(), replace(make_segment(7, 8, num_hypotheses=3), wants_attention=True)

    for hypothesis in decode_one(model, segment):
        assert hypothesis.attention is not None
        assert np.array_equal(hypothesis.attention, model.cross_attention(segment.source_ids, hypothesis.token_ids))


def test_attention_is_computed_on_request_only() -> None:
    model = FlakyModel(ToyModel(), lambda operation: operation == "cross_attention")

    assert decode_one(model, make_segment(7, 8, repetition_penalty=2.0))[0].attention is None


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
