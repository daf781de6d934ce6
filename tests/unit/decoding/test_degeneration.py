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
from tests.batch_decoding import decode_all
from tests.fakes import EOS, FIRST_WORD, FaultyToyModel, make_segment

SOURCE = (812, 40, 977, 13, 5021, 388, 61, 2210, 95, 7, 1404, 18)
TARGET = (3310, 41, 1290, 17, 88, 6402, 290, 13, 771, 4008, 52, 9, 18)
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run")
SHORT = Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail="1 token")
CLEAN = Findings(defects=(), severity=0.0)

MODEL = FaultyToyModel(num_words=40, eos_bias=-1.0)
HEALTHY = make_segment(30, 31, 32, min_target_tokens=3, max_target_tokens=25, repetition_guard=True)
LOOPING = make_segment(MODEL.LOOPER, 20, 21, max_target_tokens=25, repetition_guard=True)
SILENT = make_segment(MODEL.SILENCER, 20, 21, repetition_guard=True)
COPYING = make_segment(MODEL.COPIER, *range(20, 32), max_target_tokens=40, repetition_guard=True)

Ids = tuple[int, ...]


def kinds(source: Ids, target: Ids, *, num_forced: int = 0) -> list[DegenerationKind]:
    return [defect.kind for defect in find_degenerations(source, target, num_forced=num_forced).defects]


def test_normal_translation_has_no_defects() -> None:
    assert find_degenerations(SOURCE, TARGET) == CLEAN


@pytest.mark.parametrize(("size", "num_repeats"), [(1, 5), (2, 4), (3, 3), (5, 3), (8, 3)])
def test_repeated_phrase_is_a_loop_and_one_repeat_less_is_emphasis(size: int, num_repeats: int) -> None:
    looping, emphatic = ((*TARGET[8:], *TARGET[:size] * number, 99) for number in (num_repeats, num_repeats - 1))

    (defect,) = find_degenerations(SOURCE, looping).defects[:1]

    assert defect.kind == DegenerationKind.REPETITION
    assert f"a run of {size} token" in defect.detail
    assert f"{num_repeats} times in a row" in defect.detail
    assert kinds(SOURCE, emphatic) == []


@pytest.mark.parametrize(
    ("source", "target", "is_loop"),
    [
        (SOURCE, tuple(token for word in TARGET for token in (11, 12, 13, word))[:40], False),  # not adjacent
        ((57,) * 200, (90,) * 200, False),  # the source repeats as often
        ((57,) * 200, (90, 91) * 150, False),
        ((57, 58) * 4, (90,) * 8, False),
        ((57,) * 3 + SOURCE, (90,) * 6 + TARGET, False),  # twice as often as the source
        ((57,) * 3 + SOURCE, (90,) * 7 + TARGET, True),
    ],
)
def test_loop_is_adjacent_and_exceeds_twice_the_repeats_of_the_source(source: Ids, target: Ids, is_loop: bool) -> None:
    assert kinds(source, target) == [DegenerationKind.REPETITION] * is_loop


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


@pytest.mark.parametrize(
    ("num_source", "plausible", "implausible"),
    [(12, 56, 57), (10, 2, 1), (50, 10, 9), (9, 1, 0), (2, 1, 0), (1, 1, 0), (1, 23, 24), (0, 1, 21)],
)
def test_only_implausible_lengths_are_defects(num_source: int, plausible: int, implausible: int) -> None:
    source = tuple(range(100, 100 + num_source))

    assert kinds(source, tuple(range(500, 500 + plausible))) == []
    assert kinds(source, tuple(range(500, 500 + implausible))) == [DegenerationKind.LENGTH_RATIO]


def test_target_that_was_cut_off_is_not_too_short() -> None:
    assert find_degenerations(SOURCE, (5,), is_finished=False) == CLEAN
    assert kinds(SOURCE, (5,)) == [DegenerationKind.LENGTH_RATIO]


@pytest.mark.parametrize(
    ("target", "num_forced"), [((*SOURCE, 99), 12), ((*(8,) * 6, *TARGET), 6), ((*TARGET[:10], 99), 10)]
)
def test_target_prefix_is_not_a_defect(target: Ids, num_forced: int) -> None:
    assert kinds(SOURCE, target, num_forced=num_forced) == []


@pytest.mark.parametrize(
    ("search", "defect", "expected"),
    [
        *(
            (SearchConfig(no_repeat_ngram_size=own), LOOP, SearchConfig(no_repeat_ngram_size=size))
            for own, size in ((0, 3), (1, 1), (2, 2), (3, 3), (8, 3))
        ),
        *(
            (
                SearchConfig(min_target_tokens=own, max_target_tokens=longest, repetition_guard=True),
                SHORT,
                SearchConfig(min_target_tokens=minimum, max_target_tokens=longest, no_repeat_ngram_size=3),
            )
            for own, longest, minimum in ((0, 50, 3), (0, 2, 1), (9, 50, 9))
        ),
    ],
)
def test_redecoding_avoids_the_defect_and_keeps_stricter_limits(
    search: SearchConfig, defect: Degeneration, expected: SearchConfig
) -> None:
    assert plan_redecode(search, SOURCE, [defect]) == expected


def make_result(
    *defects: Degeneration,
    log_prob: float = -10.0,
    score: float = -1.0,
    severity: float = 0.0,
    is_finished: bool = True,
) -> tuple[Hypothesis, Findings]:
    hypothesis = Hypothesis(
        token_ids=(7,) * 10,
        token_log_probs=(log_prob / 10,) * 10,
        log_prob=log_prob,
        score=score,
        is_finished=is_finished,
    )
    return hypothesis, Findings(defects=defects, severity=severity)


@pytest.mark.parametrize(
    ("first", "second", "is_better"),
    [
        # Fewer defects at any score:
        (make_result(LOOP, score=-0.1, severity=0.9, is_finished=False), make_result(log_prob=-90.0, score=-9.0), True),
        (make_result(LOOP, severity=0.9), make_result(LOOP, SHORT, severity=0.2), False),
        # Then a lower severity, then the higher score:
        (make_result(LOOP, severity=0.5), make_result(LOOP, severity=0.3, score=-9.0), True),
        (make_result(LOOP, severity=0.5), make_result(LOOP, severity=0.5), False),
        (make_result(LOOP, severity=0.5), make_result(LOOP, severity=0.5, score=-0.9), True),
        (make_result(LOOP, severity=0.5), make_result(LOOP, severity=0.5, score=-1.1), False),
    ],
)
def test_better_result_of_two_searches(
    first: tuple[Hypothesis, Findings], second: tuple[Hypothesis, Findings], is_better: bool
) -> None:
    assert is_redecode_better(first, second) == is_better


def decode(segment: Segment, model: FaultyToyModel = MODEL) -> EndedSegment:
    return decode_all(model, [segment])[0]


def without_guard(segment: Segment, **search: object) -> Segment:
    return replace(segment, search=replace(segment.search, repetition_guard=False, **search))  # type: ignore[arg-type]


def found(ended: EndedSegment) -> list[DegenerationKind]:
    assert ended.degeneration is not None
    return [defect.kind for defect in ended.degeneration.found]


def test_target_without_defects_is_decoded_once() -> None:
    guarded = decode(HEALTHY)

    assert guarded == decode(without_guard(HEALTHY))
    assert guarded.degeneration is None


@pytest.mark.parametrize("beam_size", [1, 4])
def test_loop_is_stopped_early_and_decoded_again_without_repeats(beam_size: int) -> None:
    segment = replace(LOOPING, search=replace(LOOPING.search, beam_size=beam_size), wants_attention=True)
    ended, second = decode(segment), decode(without_guard(segment, no_repeat_ngram_size=3))
    unguarded = decode(without_guard(segment))

    assert found(ended) == [DegenerationKind.REPETITION]
    assert ended.degeneration is not None
    assert (ended.degeneration.is_replaced, ended.degeneration.remaining) == (True, ())
    assert ended.hypotheses == second.hypotheses
    assert ended.num_steps == 16 + second.num_steps
    attention = ended.hypotheses[0].attention
    assert attention is not None
    assert attention.shape[2:] == (len(ended.hypotheses[0].token_ids), len(segment.source_ids))
    assert (unguarded.degeneration, unguarded.num_steps) == (None, 25)


def test_redecoding_masks_the_same_placeholders() -> None:
    placeholders = range(FIRST_WORD + 10, FIRST_WORD + 40)

    ended = decode(LOOPING, FaultyToyModel(num_words=40, eos_bias=-1.0, placeholders=placeholders))

    assert ended.degeneration is not None
    assert ended.degeneration.is_replaced
    assert set(placeholders).intersection(ended.hypotheses[0].token_ids) <= set(LOOPING.source_ids)


def test_empty_target_is_decoded_again_with_a_minimum() -> None:
    ended = decode(SILENT)

    assert decode(without_guard(SILENT)).hypotheses[0].token_ids == (EOS,)
    assert found(ended) == [DegenerationKind.LENGTH_RATIO]
    assert len(ended.hypotheses[0].token_ids) > 1


def test_search_that_avoids_its_source_copies_no_four_tokens() -> None:
    source = COPYING.source_ids[:-1]

    copied, avoiding = decode(without_guard(COPYING)), decode(without_guard(COPYING, avoids_source=True))

    assert copied.hypotheses[0].token_ids[: len(source)] == source
    ids = avoiding.hypotheses[0].token_ids
    runs = {source[start : start + 4] for start in range(len(source) - 3)}
    assert ids
    assert not runs.intersection(ids[start : start + 4] for start in range(len(ids) - 3))


def test_first_result_is_kept_if_redecoding_has_no_hypothesis() -> None:
    # Only one word is allowed, and the minimum length requires more repeats of it than are allowed.
    others = frozenset(range(FIRST_WORD + 1, FIRST_WORD + 40))
    lengths = {"min_target_tokens": 8, "max_target_tokens": 12}
    segment = make_segment(20, 21, suppressed_tokens=others, repetition_guard=True, **lengths)

    ended = decode(segment)

    assert ended.degeneration is not None
    assert not ended.degeneration.is_replaced
    assert ended.degeneration.remaining == ended.degeneration.found
    assert ended.hypotheses == decode(without_guard(segment)).hypotheses


def test_redecoding_does_not_affect_other_segments() -> None:
    segments = [HEALTHY, LOOPING, SILENT, COPYING, without_guard(LOOPING)]

    for index, ended in enumerate(decode_all(MODEL, segments)):
        assert ended == replace(decode(segments[index]), segment_id=index)


def test_segment_can_be_dropped_while_it_is_decoded_again() -> None:
    batch = RunningBatch(MODEL)
    looping, healthy = batch.start([LOOPING, without_guard(LOOPING)])
    for _ in range(17):
        assert batch.step().ended == ()

    batch.drop([looping])

    assert batch.num_segments == 1
    ended = [each.segment_id for _ in range(60) if batch.num_segments for each in batch.step().ended]
    assert ended == [healthy]
