from dataclasses import replace

import pytest

from service.datatypes import Defect, DefectKind, Hypothesis, SearchConfig
from service.decoding.guard import Verdict, is_looping, is_second_better, judge, plan_second_search

SOURCE = (812, 40, 977, 13, 5021, 388, 61, 2210, 95, 7, 1404, 18)
TARGET = (3310, 41, 1290, 17, 88, 6402, 290, 13, 771, 4008, 52, 9, 18)
COPIED = Defect(kind=DefectKind.COPIED_SOURCE, detail="12 of 12")
LOOP = Defect(kind=DefectKind.REPETITION, detail="a run")
SHORT = Defect(kind=DefectKind.LENGTH_RATIO, detail="1 token")
CLEAN = Verdict(defects=(), severity=0.0)


def kinds(source: tuple[int, ...], target: tuple[int, ...], *, num_forced: int = 0) -> list[DefectKind]:
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

    assert defect.kind == DefectKind.REPETITION
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
    assert kinds((57,) * 3 + SOURCE, (90,) * 7 + TARGET) == [DefectKind.REPETITION]


def test_a_growing_target_is_looping_only_at_its_end() -> None:
    assert is_looping(SOURCE, (*TARGET, *(8, 9, 10) * 3))
    assert not is_looping(SOURCE, (*(8, 9, 10) * 3, *TARGET))
    assert not is_looping((57,) * 9, (8, 9, 10) * 3)
    assert not is_looping(SOURCE, ())


def test_what_is_looping_is_a_loop_when_it_ends_there() -> None:
    for size in range(1, 9):
        for num_tokens in range(40):
            target = (TARGET[:size] * 40)[:num_tokens]
            assert not is_looping(SOURCE, target) or DefectKind.REPETITION in kinds(SOURCE, target)


def test_a_copied_source_is_found() -> None:
    assert kinds(SOURCE, SOURCE) == [DefectKind.COPIED_SOURCE]
    assert kinds(SOURCE, (44, *SOURCE[2:11], 45)) == [DefectKind.COPIED_SOURCE]


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

    assert found == [DefectKind.LENGTH_RATIO] * is_absurd


def test_a_target_that_was_cut_off_is_not_too_short() -> None:
    assert judge(SOURCE, (5,), is_finished=False) == CLEAN
    assert kinds(SOURCE, (5,)) == [DefectKind.LENGTH_RATIO]


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
