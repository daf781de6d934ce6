from dataclasses import replace

import pytest

from dragoman_service.datatypes import Degeneration, DegenerationKind, Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.degeneration import (
    EndedSegment,
    Verdict,
    is_looping,
    is_second_better,
    judge,
    plan_second_search,
)
from dragoman_service.decoding.running_batch import RunningBatch
from tests.fakes import EOS, FIRST_WORD, FaultyToyModel, ToyModel, make_segment

SOURCE = (812, 40, 977, 13, 5021, 388, 61, 2210, 95, 7, 1404, 18)
TARGET = (3310, 41, 1290, 17, 88, 6402, 290, 13, 771, 4008, 52, 9, 18)
COPIED = Degeneration(kind=DegenerationKind.COPIED_SOURCE, detail="12 of 12")
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run")
SHORT = Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail="1 token")
CLEAN = Verdict(defects=(), severity=0.0)

MODEL = FaultyToyModel(num_words=40, eos_bias=-1.0)
HEALTHY = make_segment(30, 31, 32, min_target_tokens=3, max_target_tokens=25, repetition_guard=True)
LOOPING = make_segment(MODEL.LOOPER, 20, 21, max_target_tokens=25, repetition_guard=True)
SILENT = make_segment(MODEL.SILENCER, 20, 21, repetition_guard=True)
COPYING = make_segment(MODEL.COPIER, *range(20, 32), max_target_tokens=40, repetition_guard=True)


def kinds(source: tuple[int, ...], target: tuple[int, ...], *, num_forced: int = 0) -> list[DegenerationKind]:
    return [defect.kind for defect in judge(source, target, num_forced=num_forced).defects]


def make_hypothesis(log_prob: float, *, score: float = -1.0, is_finished: bool = True) -> Hypothesis:
    return Hypothesis(
        token_ids=(7,) * 10, token_log_probs=(log_prob / 10,) * 10, log_prob=log_prob, score=score,
        is_finished=is_finished,
    )  # fmt: skip


def test_a_normal_translation_passes() -> None:
    assert judge(SOURCE, TARGET) == CLEAN


@pytest.mark.parametrize(("size", "num_repeats"), [(1, 5), (2, 4), (3, 3), (5, 3), (8, 3)])
def test_a_phrase_over_and_over_is_a_loop(size: int, num_repeats: int) -> None:
    phrase = TARGET[:size]
    target = (*TARGET[8:], *phrase * num_repeats, 99)

    defect = judge(SOURCE, target).defects[0]

    assert defect.kind == DegenerationKind.REPETITION
    assert f"a run of {size} token" in defect.detail
    assert f"{num_repeats} times in a row" in defect.detail


@pytest.mark.parametrize(("size", "num_repeats"), [(1, 4), (2, 3), (3, 2), (8, 2)])
def test_emphasis_is_no_loop(size: int, num_repeats: int) -> None:
    assert kinds(SOURCE, (*TARGET[8:], *TARGET[:size] * num_repeats, 99)) == []


def test_repeats_that_do_not_touch_are_no_loop() -> None:
    target = tuple(token for word in TARGET for token in (11, 12, 13, word))[:40]

    assert kinds(SOURCE, target) == []


def test_a_source_that_repeats_itself_may_be_translated_so() -> None:
    source = (57,) * 200

    assert kinds(source, (90,) * 200) == []
    assert kinds(source, (90, 91) * 150) == []
    assert kinds((57, 58) * 4, (90,) * 8) == []


def test_a_loop_is_judged_by_what_the_source_repeats() -> None:
    assert kinds((57,) * 3 + SOURCE, (90,) * 6 + TARGET) == []
    assert kinds((57,) * 3 + SOURCE, (90,) * 7 + TARGET) == [DegenerationKind.REPETITION]


def test_a_growing_target_is_looping_only_at_its_end() -> None:
    assert is_looping(SOURCE, (*TARGET, *(8, 9, 10) * 3))
    assert not is_looping(SOURCE, (*(8, 9, 10) * 3, *TARGET))
    assert not is_looping((57,) * 9, (8, 9, 10) * 3)
    assert not is_looping(SOURCE, ())


def test_what_is_looping_is_a_loop_when_it_ends_there() -> None:
    for size in range(1, 9):
        for num_tokens in range(40):
            target = (TARGET[:size] * 40)[:num_tokens]
            assert not is_looping(SOURCE, target) or DegenerationKind.REPETITION in kinds(SOURCE, target)


def test_a_copied_source_is_found() -> None:
    assert kinds(SOURCE, SOURCE) == [DegenerationKind.COPIED_SOURCE]
    assert kinds(SOURCE, (44, *SOURCE[2:11], 45)) == [DegenerationKind.COPIED_SOURCE]


def test_a_name_in_a_translation_may_be_copied() -> None:
    name = SOURCE[:7]

    assert kinds(name, name) == []
    assert kinds(SOURCE, (*TARGET[:8], *SOURCE[:9])) == []


def test_tokens_in_common_are_no_copy_in_another_order() -> None:
    assert kinds(SOURCE, SOURCE[::-1]) == []


@pytest.mark.parametrize(
    ("num_source", "num_target", "is_absurd"),
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
def test_only_absurd_lengths_are_found(num_source: int, num_target: int, is_absurd: bool) -> None:
    found = kinds(tuple(range(100, 100 + num_source)), tuple(range(500, 500 + num_target)))

    assert found == [DegenerationKind.LENGTH_RATIO] * is_absurd


def test_a_target_that_was_cut_off_is_not_too_short() -> None:
    assert judge(SOURCE, (5,), is_finished=False) == CLEAN
    assert kinds(SOURCE, (5,)) == [DegenerationKind.LENGTH_RATIO]


def test_what_the_caller_forced_is_no_fault_of_the_model() -> None:
    assert kinds(SOURCE, (*SOURCE, 99), num_forced=12) == []
    assert kinds(SOURCE, (*(8,) * 6, *TARGET), num_forced=6) == []
    assert kinds(SOURCE, (*TARGET[:10], 99), num_forced=10) == []


def test_the_second_search_forbids_repeats() -> None:
    assert plan_second_search(SearchConfig(repetition_guard=True), SOURCE, [LOOP]).search == SearchConfig(
        no_repeat_ngram_size=3
    )


@pytest.mark.parametrize(("own", "expected"), [(0, 3), (1, 1), (2, 2), (3, 3), (8, 3)])
def test_a_caller_s_stricter_limit_stays(own: int, expected: int) -> None:
    plan = plan_second_search(SearchConfig(no_repeat_ngram_size=own), SOURCE, [LOOP])

    assert plan.search.no_repeat_ngram_size == expected
    assert plan.avoided_size == 0


def test_the_second_search_keeps_away_from_a_copied_source() -> None:
    plan = plan_second_search(SearchConfig(), SOURCE, [COPIED])

    assert (plan.avoided_ids, plan.avoided_size) == (SOURCE, 4)


def test_the_second_search_for_a_short_target_has_a_minimum_within_the_maximum() -> None:
    assert plan_second_search(SearchConfig(), SOURCE, [SHORT]).search.min_target_tokens == 3
    assert plan_second_search(SearchConfig(max_target_tokens=2), SOURCE, [SHORT]).search.min_target_tokens == 1
    assert plan_second_search(SearchConfig(min_target_tokens=9), SOURCE, [SHORT]).search.min_target_tokens == 9


def test_fewer_defects_win_whatever_the_score() -> None:
    loop = make_hypothesis(-1.0, score=-0.1, is_finished=False), Verdict(defects=(LOOP,), severity=0.9)
    clean = make_hypothesis(-90.0, score=-9.0), CLEAN

    assert is_second_better(loop, clean)
    assert not is_second_better(loop, (clean[0], Verdict(defects=(LOOP, SHORT), severity=0.2)))


def test_lesser_defects_win_then_the_higher_score() -> None:
    first = make_hypothesis(-10.0, score=-1.0), Verdict(defects=(LOOP,), severity=0.5)

    assert is_second_better(first, (first[0], replace(first[1], severity=0.3)))
    assert not is_second_better(first, first)
    assert is_second_better(first, (replace(first[0], score=-0.9), first[1]))
    assert not is_second_better(first, (replace(first[0], score=-1.1), first[1]))


def test_a_copy_is_replaced_only_by_something_likely() -> None:
    address = make_hypothesis(-0.5), Verdict(defects=(COPIED,), severity=1.0)

    assert is_second_better(address, (make_hypothesis(-8.0), CLEAN))
    assert not is_second_better(address, (make_hypothesis(-30.0), CLEAN))


def decode(*segments: Segment, model: ToyModel = MODEL) -> list[EndedSegment]:
    engine = RunningBatch(model)
    engine.start(segments)
    ended: list[EndedSegment] = []
    while engine.num_segments:
        ended += engine.step().ended
    return sorted(ended, key=lambda segment: segment.segment_id)


def without_guard(segment: Segment, **search: object) -> Segment:
    return replace(segment, search=replace(segment.search, repetition_guard=False, **search))  # type: ignore[arg-type]


def test_a_target_without_defects_is_searched_once() -> None:
    guarded, unguarded = decode(HEALTHY)[0], decode(without_guard(HEALTHY))[0]

    assert guarded == unguarded
    assert guarded.guard is None


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_loop_is_ended_early_and_searched_once_more_without_repeats(beam_size: int) -> None:
    segment = replace(LOOPING, search=replace(LOOPING.search, beam_size=beam_size))
    ended = decode(segment)[0]
    second = decode(without_guard(segment, no_repeat_ngram_size=3))[0]

    assert ended.guard is not None
    assert [defect.kind for defect in ended.guard.found] == [DegenerationKind.REPETITION]
    assert ended.guard.is_replaced
    assert ended.guard.remaining == ()
    assert ended.hypotheses == second.hypotheses
    assert ended.num_steps == 16 + second.num_steps


def test_a_second_search_masks_placeholders_as_the_first_did() -> None:
    placeholders = range(FIRST_WORD + 10, FIRST_WORD + 40)
    engine = RunningBatch(FaultyToyModel(num_words=40, eos_bias=-1.0, placeholders=placeholders))
    engine.start([LOOPING])

    (ended,) = (each for _ in range(60) if engine.num_segments for each in engine.step().ended)

    assert ended.guard is not None
    assert ended.guard.is_replaced
    assert set(placeholders).intersection(ended.hypotheses[0].token_ids) <= set(LOOPING.source_ids)


def test_an_unguarded_loop_runs_to_its_end() -> None:
    ended = decode(without_guard(LOOPING))[0]

    assert ended.guard is None
    assert len(set(ended.hypotheses[0].token_ids)) == 1
    assert ended.num_steps == 25


def test_an_empty_target_is_searched_once_more_with_a_minimum() -> None:
    ended = decode(SILENT)[0]

    assert decode(without_guard(SILENT))[0].hypotheses[0].token_ids == (EOS,)
    assert ended.guard is not None
    assert [defect.kind for defect in ended.guard.found] == [DegenerationKind.LENGTH_RATIO]
    assert len(ended.hypotheses[0].token_ids) > 1


def test_a_copy_is_searched_once_more_away_from_the_source() -> None:
    source = COPYING.source_ids[:-1]

    first, ended = decode(without_guard(COPYING))[0], decode(COPYING)[0]

    assert first.hypotheses[0].token_ids[: len(source)] == source
    assert ended.guard is not None
    assert [defect.kind for defect in ended.guard.found] == [DegenerationKind.COPIED_SOURCE]
    assert ended.num_steps > first.num_steps


def test_a_second_search_that_yields_nothing_keeps_the_first() -> None:
    # Only one word is left, and the minimum length asks for more of it than repeats may give.
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

    assert ended.guard is not None
    assert not ended.guard.is_replaced
    assert ended.guard.remaining == ended.guard.found
    assert ended.hypotheses == first.hypotheses


def test_second_searches_do_not_disturb_the_batch() -> None:
    batch = [HEALTHY, LOOPING, SILENT, COPYING, without_guard(LOOPING)]

    together = decode(*batch)

    for index, (segment, ended) in enumerate(zip(batch, together, strict=True)):
        assert ended == replace(decode(segment)[0], segment_id=index)


def test_a_segment_may_be_dropped_during_its_second_search() -> None:
    engine = RunningBatch(MODEL)
    looping, healthy = engine.start([LOOPING, without_guard(LOOPING)])
    for _ in range(17):
        assert engine.step().ended == ()

    engine.drop([looping])

    assert engine.num_segments == 1
    ended = [found.segment_id for _ in range(60) if engine.num_segments for found in engine.step().ended]
    assert ended == [healthy]


def test_attention_belongs_to_the_search_that_is_returned() -> None:
    ended = decode(replace(LOOPING, wants_attention=True))[0]

    attention = ended.hypotheses[0].attention
    assert attention is not None
    assert attention.shape[2:] == (len(ended.hypotheses[0].token_ids), len(LOOPING.source_ids))
