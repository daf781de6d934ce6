from dataclasses import replace

import pytest

from dragoman_service.datatypes import Degeneration, DegenerationKind, Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.degeneration import (
    EndedSegment,
    Findings,
    find_degenerations,
    is_looping,
    is_redecode_better,
    plan_redecode,
)
from dragoman_service.decoding.running_batch import RunningBatch
from tests.fakes import EOS, FIRST_WORD, FaultyToyModel, ToyModel, make_segment

SOURCE = (812, 40, 977, 13, 5021, 388, 61, 2210, 95, 7, 1404, 18)
TARGET = (3310, 41, 1290, 17, 88, 6402, 290, 13, 771, 4008, 52, 9, 18)
COPIED = Degeneration(kind=DegenerationKind.COPIED_SOURCE, detail="12 of 12")
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run")
SHORT = Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail="1 token")
CLEAN = Findings(defects=(), severity=0.0)

MODEL = FaultyToyModel(num_words=40, eos_bias=-1.0)
HEALTHY = make_segment(30, 31, 32, min_target_tokens=3, max_target_tokens=25, repetition_guard=True)
LOOPING = make_segment(MODEL.LOOPER, 20, 21, max_target_tokens=25, repetition_guard=True)
SILENT = make_segment(MODEL.SILENCER, 20, 21, repetition_guard=True)
COPYING = make_segment(MODEL.COPIER, *range(20, 32), max_target_tokens=40, repetition_guard=True)


def kinds(source: tuple[int, ...], target: tuple[int, ...], *, num_forced: int = 0) -> list[DegenerationKind]:
    return [defect.kind for defect in find_degenerations(source, target, num_forced=num_forced).defects]


def make_hypothesis(log_prob: float, *, score: float = -1.0, is_finished: bool = True) -> Hypothesis:
    return Hypothesis(
        token_ids=(7,) * 10, token_log_probs=(log_prob / 10,) * 10, log_prob=log_prob, score=score,
        is_finished=is_finished,
    )  # fmt: skip


def test_normal_translation_has_no_defects() -> None:
    assert find_degenerations(SOURCE, TARGET) == CLEAN


@pytest.mark.parametrize(("size", "num_repeats"), [(1, 5), (2, 4), (3, 3), (5, 3), (8, 3)])
def test_repeated_phrase_is_a_loop(size: int, num_repeats: int) -> None:
    phrase = TARGET[:size]
    target = (*TARGET[8:], *phrase * num_repeats, 99)

    defect = find_degenerations(SOURCE, target).defects[0]

    assert defect.kind == DegenerationKind.REPETITION
    assert f"a run of {size} token" in defect.detail
    assert f"{num_repeats} times in a row" in defect.detail


@pytest.mark.parametrize(("size", "num_repeats"), [(1, 4), (2, 3), (3, 2), (8, 2)])
def test_emphasis_is_not_a_loop(size: int, num_repeats: int) -> None:
    assert kinds(SOURCE, (*TARGET[8:], *TARGET[:size] * num_repeats, 99)) == []


def test_repeats_that_are_not_adjacent_are_not_a_loop() -> None:
    target = tuple(token for word in TARGET for token in (11, 12, 13, word))[:40]

    assert kinds(SOURCE, target) == []


def test_target_can_repeat_what_the_source_repeats() -> None:
    source = (57,) * 200

    assert kinds(source, (90,) * 200) == []
    assert kinds(source, (90, 91) * 150) == []
    assert kinds((57, 58) * 4, (90,) * 8) == []


def test_loop_exceeds_twice_the_repeats_of_the_source() -> None:
    assert kinds((57,) * 3 + SOURCE, (90,) * 6 + TARGET) == []
    assert kinds((57,) * 3 + SOURCE, (90,) * 7 + TARGET) == [DegenerationKind.REPETITION]


def test_growing_target_loops_only_at_its_end() -> None:
    assert is_looping(SOURCE, (*TARGET, *(8, 9, 10) * 3))
    assert not is_looping(SOURCE, (*(8, 9, 10) * 3, *TARGET))
    assert not is_looping((57,) * 9, (8, 9, 10) * 3)
    assert not is_looping(SOURCE, ())


def test_looping_target_is_a_loop_if_it_ends() -> None:
    for size in range(1, 9):
        for num_tokens in range(40):
            target = (TARGET[:size] * 40)[:num_tokens]
            assert not is_looping(SOURCE, target) or DegenerationKind.REPETITION in kinds(SOURCE, target)


def test_copied_source_is_a_defect() -> None:
    assert kinds(SOURCE, SOURCE) == [DegenerationKind.COPIED_SOURCE]
    assert kinds(SOURCE, (44, *SOURCE[2:11], 45)) == [DegenerationKind.COPIED_SOURCE]


def test_copied_name_is_not_a_defect() -> None:
    name = SOURCE[:7]

    assert kinds(name, name) == []
    assert kinds(SOURCE, (*TARGET[:8], *SOURCE[:9])) == []


def test_common_tokens_in_another_order_are_not_a_copy() -> None:
    assert kinds(SOURCE, SOURCE[::-1]) == []


@pytest.mark.parametrize(
    ("num_source", "num_target", "is_implausible"),
    [
        (12, 56, False),
        (12, 57, True),
        (10, 2, False),
        (10, 1, True),
        (50, 9, True),
        (9, 1, False),
        (2, 0, True),
        (1, 0, False),
        (0, 0, False),
        (1, 23, False),
        (1, 24, True),
    ],
)
def test_only_implausible_lengths_are_defects(num_source: int, num_target: int, is_implausible: bool) -> None:
    defects = kinds(tuple(range(100, 100 + num_source)), tuple(range(500, 500 + num_target)))

    assert defects == [DegenerationKind.LENGTH_RATIO] * is_implausible


def test_target_that_was_cut_off_is_not_too_short() -> None:
    assert find_degenerations(SOURCE, (5,), is_finished=False) == CLEAN
    assert kinds(SOURCE, (5,)) == [DegenerationKind.LENGTH_RATIO]


def test_target_prefix_is_not_a_defect() -> None:
    assert kinds(SOURCE, (*SOURCE, 99), num_forced=12) == []
    assert kinds(SOURCE, (*(8,) * 6, *TARGET), num_forced=6) == []
    assert kinds(SOURCE, (*TARGET[:10], 99), num_forced=10) == []


def test_redecoding_forbids_repeats() -> None:
    assert plan_redecode(SearchConfig(repetition_guard=True), SOURCE, [LOOP]).search == SearchConfig(
        no_repeat_ngram_size=3
    )


@pytest.mark.parametrize(("own", "expected"), [(0, 3), (1, 1), (2, 2), (3, 3), (8, 3)])
def test_stricter_limit_of_the_caller_is_kept(own: int, expected: int) -> None:
    plan = plan_redecode(SearchConfig(no_repeat_ngram_size=own), SOURCE, [LOOP])

    assert plan.search.no_repeat_ngram_size == expected
    assert plan.avoided_size == 0


def test_redecoding_avoids_a_copied_source() -> None:
    plan = plan_redecode(SearchConfig(), SOURCE, [COPIED])

    assert (plan.avoided_ids, plan.avoided_size) == (SOURCE, 4)


def test_redecoding_of_a_short_target_has_a_minimum_within_the_maximum() -> None:
    assert plan_redecode(SearchConfig(), SOURCE, [SHORT]).search.min_target_tokens == 3
    assert plan_redecode(SearchConfig(max_target_tokens=2), SOURCE, [SHORT]).search.min_target_tokens == 1
    assert plan_redecode(SearchConfig(min_target_tokens=9), SOURCE, [SHORT]).search.min_target_tokens == 9


def test_result_with_fewer_defects_is_better_at_any_score() -> None:
    loop = make_hypothesis(-1.0, score=-0.1, is_finished=False), Findings(defects=(LOOP,), severity=0.9)
    clean = make_hypothesis(-90.0, score=-9.0), CLEAN

    assert is_redecode_better(loop, clean)
    assert not is_redecode_better(loop, (clean[0], Findings(defects=(LOOP, SHORT), severity=0.2)))


def test_lower_severity_is_better_then_the_higher_score() -> None:
    first = make_hypothesis(-10.0, score=-1.0), Findings(defects=(LOOP,), severity=0.5)

    assert is_redecode_better(first, (first[0], replace(first[1], severity=0.3)))
    assert not is_redecode_better(first, first)
    assert is_redecode_better(first, (replace(first[0], score=-0.9), first[1]))
    assert not is_redecode_better(first, (replace(first[0], score=-1.1), first[1]))


def test_copy_is_replaced_only_by_a_likely_target() -> None:
    address = make_hypothesis(-0.5), Findings(defects=(COPIED,), severity=1.0)

    assert is_redecode_better(address, (make_hypothesis(-8.0), CLEAN))
    assert not is_redecode_better(address, (make_hypothesis(-30.0), CLEAN))


def decode(*segments: Segment, model: ToyModel = MODEL) -> list[EndedSegment]:
    batch = RunningBatch(model)
    batch.start(segments)
    ended: list[EndedSegment] = []
    while batch.num_segments:
        ended += batch.step().ended
    return sorted(ended, key=lambda segment: segment.segment_id)


def without_guard(segment: Segment, **search: object) -> Segment:
    return replace(segment, search=replace(segment.search, repetition_guard=False, **search))  # type: ignore[arg-type]


def test_target_without_defects_is_decoded_once() -> None:
    guarded, unguarded = decode(HEALTHY)[0], decode(without_guard(HEALTHY))[0]

    assert guarded == unguarded
    assert guarded.degeneration is None


@pytest.mark.parametrize("beam_size", [1, 4])
def test_loop_is_stopped_early_and_decoded_again_without_repeats(beam_size: int) -> None:
    segment = replace(LOOPING, search=replace(LOOPING.search, beam_size=beam_size))
    ended = decode(segment)[0]
    second = decode(without_guard(segment, no_repeat_ngram_size=3))[0]

    assert ended.degeneration is not None
    assert [defect.kind for defect in ended.degeneration.found] == [DegenerationKind.REPETITION]
    assert ended.degeneration.is_replaced
    assert ended.degeneration.remaining == ()
    assert ended.hypotheses == second.hypotheses
    assert ended.num_steps == 16 + second.num_steps


def test_redecoding_masks_the_same_placeholders() -> None:
    placeholders = range(FIRST_WORD + 10, FIRST_WORD + 40)
    batch = RunningBatch(FaultyToyModel(num_words=40, eos_bias=-1.0, placeholders=placeholders))
    batch.start([LOOPING])

    (ended,) = (each for _ in range(60) if batch.num_segments for each in batch.step().ended)

    assert ended.degeneration is not None
    assert ended.degeneration.is_replaced
    assert set(placeholders).intersection(ended.hypotheses[0].token_ids) <= set(LOOPING.source_ids)


def test_unguarded_loop_runs_to_the_longest_target() -> None:
    ended = decode(without_guard(LOOPING))[0]

    assert ended.degeneration is None
    assert len(set(ended.hypotheses[0].token_ids)) == 1
    assert ended.num_steps == 25


def test_empty_target_is_decoded_again_with_a_minimum() -> None:
    ended = decode(SILENT)[0]

    assert decode(without_guard(SILENT))[0].hypotheses[0].token_ids == (EOS,)
    assert ended.degeneration is not None
    assert [defect.kind for defect in ended.degeneration.found] == [DegenerationKind.LENGTH_RATIO]
    assert len(ended.hypotheses[0].token_ids) > 1


def test_copy_is_decoded_again() -> None:
    source = COPYING.source_ids[:-1]

    first, ended = decode(without_guard(COPYING))[0], decode(COPYING)[0]

    assert first.hypotheses[0].token_ids[: len(source)] == source
    assert ended.degeneration is not None
    assert [defect.kind for defect in ended.degeneration.found] == [DegenerationKind.COPIED_SOURCE]
    assert ended.num_steps > first.num_steps


def test_first_result_is_kept_if_redecoding_has_no_hypothesis() -> None:
    # Only one word is allowed, and the minimum length requires more repeats of it than are allowed.
    others = frozenset(range(FIRST_WORD + 1, FIRST_WORD + 40))
    segment = make_segment(
        20,
        21,
        suppressed_tokens=others,
        min_target_tokens=8,
        max_target_tokens=12,
        no_repeat_ngram_size=0,
        repetition_guard=True,
    )

    ended, first = decode(segment)[0], decode(without_guard(segment))[0]

    assert ended.degeneration is not None
    assert not ended.degeneration.is_replaced
    assert ended.degeneration.remaining == ended.degeneration.found
    assert ended.hypotheses == first.hypotheses


def test_redecoding_does_not_affect_other_segments() -> None:
    batch = [HEALTHY, LOOPING, SILENT, COPYING, without_guard(LOOPING)]

    together = decode(*batch)

    for index, (segment, ended) in enumerate(zip(batch, together, strict=True)):
        assert ended == replace(decode(segment)[0], segment_id=index)


def test_segment_can_be_dropped_while_it_is_decoded_again() -> None:
    batch = RunningBatch(MODEL)
    looping, healthy = batch.start([LOOPING, without_guard(LOOPING)])
    for _ in range(17):
        assert batch.step().ended == ()

    batch.drop([looping])

    assert batch.num_segments == 1
    ended = [found.segment_id for _ in range(60) if batch.num_segments for found in batch.step().ended]
    assert ended == [healthy]


def test_attention_belongs_to_the_returned_result() -> None:
    ended = decode(replace(LOOPING, wants_attention=True))[0]

    attention = ended.hypotheses[0].attention
    assert attention is not None
    assert attention.shape[2:] == (len(ended.hypotheses[0].token_ids), len(LOOPING.source_ids))
