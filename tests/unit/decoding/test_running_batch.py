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
    """Takes down how many candidates each step asks for."""

    def __init__(self, inner: ToyModel) -> None:
        super().__init__(inner)
        self.counts: list[list[int]] = []
        """Of the first row of each segment, at each step."""

    def new_batch(self) -> StepBatch:
        model = self

        class Batch(WrappedBatch):
            def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
                model.counts.append(np.broadcast_to(num_candidates, token_ids.shape)[:, 0].tolist())
                return super().step(token_ids, parents, num_candidates=num_candidates)

        return Batch(self, self.inner.new_batch())


def decode(model: StepModel, *segments: Segment) -> list[EndedSegment]:
    """Decode segments together; return what became of each, in order."""
    engine = RunningBatch(model)
    engine.start(segments)
    ended: list[EndedSegment] = []
    while engine.num_segments:
        ended += engine.step().ended
    return sorted(ended, key=lambda segment: segment.segment_id)


def decode_one(model: StepModel, segment: Segment) -> tuple[Hypothesis, ...]:
    return decode(model, segment)[0].hypotheses


def test_hypotheses_come_best_first_and_differ() -> None:
    hypotheses = decode_one(ToyModel(), make_segment(7, 8, beam_size=4, num_hypotheses=4))

    assert len({hypothesis.token_ids for hypothesis in hypotheses}) == 4
    assert all(better.score >= worse.score for better, worse in pairwise(hypotheses))


def test_token_log_probs_are_those_of_the_model() -> None:
    model, segment = ToyModel(), make_segment(7, 8, num_hypotheses=3)

    for hypothesis in decode_one(model, segment):
        expected = [
            float(model.next_log_probs(segment.source_ids, hypothesis.token_ids[:step])[token])
            for step, token in enumerate(hypothesis.token_ids)
        ]

        assert list(hypothesis.token_log_probs) == expected
        assert hypothesis.log_prob == pytest.approx(math.fsum(expected))


def test_finished_hypotheses_end_with_eos_and_hold_no_other_special_token() -> None:
    for seed in range(20):
        for hypothesis in decode_one(ToyModel(seed=seed), make_segment(7, num_hypotheses=4, max_target_tokens=100)):
            assert hypothesis.is_finished
            assert hypothesis.token_ids[-1] == EOS
            assert not {PAD, BOS, UNK, EOS} & set(hypothesis.token_ids[:-1])


@pytest.mark.parametrize("min_target_tokens", [0, 1, 5])
def test_eos_waits_for_the_minimum_length(min_target_tokens: int) -> None:
    segment = make_segment(7, min_target_tokens=min_target_tokens, max_target_tokens=30)

    best = decode_one(ToyModel(eos_bias=10.0), segment)[0]

    assert len(best.token_ids) == min_target_tokens + 1


def test_the_longest_target_cuts_hypotheses_off_unfinished() -> None:
    hypotheses = decode_one(ToyModel(eos_bias=-100.0), make_segment(7, num_hypotheses=2, max_target_tokens=6))

    assert [len(hypothesis.token_ids) for hypothesis in hypotheses] == [6, 6]
    assert not any(hypothesis.is_finished for hypothesis in hypotheses)


def test_unfinished_hypotheses_only_fill_places_left_by_finished_ones() -> None:
    segment = make_segment(7, beam_size=4, num_hypotheses=4, min_target_tokens=2, max_target_tokens=3)

    hypotheses = decode_one(ToyModel(eos_bias=2.0), segment)

    kinds = [hypothesis.is_finished for hypothesis in hypotheses]
    assert len(kinds) == 4
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {True, False}


def test_an_empty_target_is_one_eos() -> None:
    best = decode_one(ToyModel(eos_bias=50.0), make_segment(7))[0]

    assert best.token_ids == (EOS,)


def test_the_first_step_of_a_large_batch_has_one_row_and_later_ones_no_more_than_the_widest_beam() -> None:
    engine = RunningBatch(ToyModel(eos_bias=-100.0))
    engine.start([make_segment(7, beam_size=3)] * 6 + [make_segment(8, beam_size=1)])

    assert [engine.step().num_rows for _ in range(4)] == [1, 3, 3, 3]


def test_a_small_batch_has_all_its_rows_from_the_first_step_on() -> None:
    engine = RunningBatch(ToyModel(eos_bias=-100.0))
    engine.start([make_segment(7, beam_size=3)])

    assert [engine.step().num_rows for _ in range(3)] == [3, 3, 3]


def test_the_rows_shrink_when_the_widest_beam_leaves() -> None:
    engine = RunningBatch(ToyModel(eos_bias=-100.0))
    wide, *_ = engine.start([make_segment(7, beam_size=4), *[make_segment(8, beam_size=2)] * 9])
    reports = [engine.step(), engine.step()]

    engine.drop([wide])

    assert [report.num_rows for report in (*reports, engine.step())] == [1, 4, 2]


def test_segments_leave_as_soon_as_they_end() -> None:
    engine = RunningBatch(ToyModel(eos_bias=-100.0))
    handles = engine.start([make_segment(7, max_target_tokens=2), make_segment(8, max_target_tokens=3)])

    reports = [engine.step() for _ in range(3)]

    assert [report.num_segments for report in reports] == [2, 2, 1]
    assert [[ended.segment_id for ended in report.ended] for report in reports] == [[], handles[:1], handles[1:]]
    assert reports[1].ended[0].num_steps == 2


def test_a_dropped_segment_is_never_reported() -> None:
    engine = RunningBatch(ToyModel())
    first, second = engine.start([make_segment(7), make_segment(8)])
    engine.step()

    engine.drop([first])

    ended = [segment.segment_id for _ in range(12) if engine.num_segments for segment in engine.step().ended]
    assert ended == [second]


def test_an_emptied_engine_takes_new_segments() -> None:
    engine, segment = RunningBatch(ToyModel()), make_segment(7, 8)
    engine.drop(engine.start([make_segment(9), make_segment(8)]))

    engine.start([segment])

    ended = [found for _ in range(12) if engine.num_segments for found in engine.step().ended]
    assert ended[0].hypotheses == decode_one(ToyModel(), segment)


def test_a_broken_row_leaves_its_neighbours_alone() -> None:
    broken, whole = decode(BrokenToyModel(), make_segment(9), make_segment(7, 8))

    assert broken.hypotheses == ()
    assert broken.num_steps == 1
    assert whole.hypotheses == decode_one(ToyModel(), make_segment(7, 8))


def test_a_beam_may_be_wider_than_the_vocabulary() -> None:
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
def test_options_the_search_cannot_take_are_refused(search: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        check_segment(make_segment(7, **search), ToyModel().limits)


@pytest.mark.parametrize("num_tokens", [0, 65])
def test_sources_the_model_cannot_take_are_refused(num_tokens: int) -> None:
    segment = replace(make_segment(7), source_ids=(5,) * num_tokens)

    with pytest.raises(ValueError, match=f"source tokens {num_tokens}"):
        check_segment(segment, ToyModel().limits)


def test_every_option_at_once_is_taken() -> None:
    options = {"target_prefix": (5, 3), "suppressed_tokens": frozenset({8}), "no_repeat_ngram_size": 2}

    check_segment(make_segment(7, **options, repetition_penalty=2.0, coverage_penalty=1.0), ToyModel().limits)
    check_segment(make_segment(7, **options, beam_size=1, sampling=SamplingConfig(top_k=10**6)), ToyModel().limits)


def test_attention_is_that_of_each_hypothesis_returned() -> None:
    model, segment = ToyModel(), replace(make_segment(7, 8, num_hypotheses=3), wants_attention=True)

    for hypothesis in decode_one(model, segment):
        assert hypothesis.attention is not None
        assert np.array_equal(hypothesis.attention, model.cross_attention(segment.source_ids, hypothesis.token_ids))


def test_attention_is_not_computed_unless_it_is_asked_for() -> None:
    model = FlakyModel(ToyModel(), lambda operation: operation == "cross_attention")

    assert decode_one(model, make_segment(7, 8, repetition_penalty=2.0))[0].attention is None


def test_candidates_are_few_without_options_and_as_many_as_needed_with_them() -> None:
    model = CandidateCounter(ToyModel(num_words=90, eos_bias=-100.0))
    engine = RunningBatch(model)
    engine.start([make_segment(7)])
    engine.step()
    engine.start([make_segment(8, suppressed_tokens=frozenset(range(10, 40)), max_target_tokens=2)])
    engine.step()
    engine.start([make_segment(8, beam_size=1, sampling=SamplingConfig(), max_target_tokens=1)])
    engine.step()
    engine.step()

    assert model.counts == [[8], [8, 40], [8, 40, 94], [8]]
