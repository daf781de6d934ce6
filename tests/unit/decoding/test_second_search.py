from dataclasses import replace

import pytest

from service.datatypes import DefectKind, Segment
from service.decoding.running_batch import EndedSegment, Engine
from tests.fakes import EOS, FIRST_WORD, FaultyToyModel, ToyModel, make_segment

MODEL = FaultyToyModel(num_words=40, eos_bias=-1.0)
HEALTHY = make_segment(30, 31, 32, min_target_tokens=3, max_target_tokens=25, repetition_guard=True)
LOOPING = make_segment(MODEL.LOOPER, 20, 21, max_target_tokens=25, repetition_guard=True)
SILENT = make_segment(MODEL.SILENCER, 20, 21, repetition_guard=True)
COPYING = make_segment(MODEL.COPIER, *range(20, 32), max_target_tokens=40, repetition_guard=True)


def decode(*segments: Segment, model: ToyModel = MODEL) -> list[EndedSegment]:
    engine = Engine(model)
    engine.start(segments)
    ended: list[EndedSegment] = []
    while engine.num_segments:
        ended += engine.step().ended
    return sorted(ended, key=lambda segment: segment.handle)


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
    assert [defect.kind for defect in ended.guard.found] == [DefectKind.REPETITION]
    assert ended.guard.is_replaced
    assert ended.guard.remaining == ()
    assert ended.hypotheses == second.hypotheses
    assert ended.num_steps == 16 + second.num_steps


def test_an_unguarded_loop_runs_to_its_end() -> None:
    ended = decode(without_guard(LOOPING))[0]

    assert ended.guard is None
    assert len(set(ended.hypotheses[0].token_ids)) == 1
    assert ended.num_steps == 25


def test_an_empty_target_is_searched_once_more_with_a_minimum() -> None:
    ended = decode(SILENT)[0]

    assert decode(without_guard(SILENT))[0].hypotheses[0].token_ids == (EOS,)
    assert ended.guard is not None
    assert [defect.kind for defect in ended.guard.found] == [DefectKind.LENGTH_RATIO]
    assert len(ended.hypotheses[0].token_ids) > 1


def test_a_copy_is_searched_once_more_away_from_the_source() -> None:
    source = COPYING.source_ids[:-1]

    first, ended = decode(without_guard(COPYING))[0], decode(COPYING)[0]

    assert first.hypotheses[0].token_ids[: len(source)] == source
    assert ended.guard is not None
    assert [defect.kind for defect in ended.guard.found] == [DefectKind.COPIED_SOURCE]
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
    company = [HEALTHY, LOOPING, SILENT, COPYING, without_guard(LOOPING)]

    together = decode(*company)

    for index, (segment, ended) in enumerate(zip(company, together, strict=True)):
        assert ended == replace(decode(segment)[0], handle=index)


def test_a_segment_may_be_dropped_during_its_second_search() -> None:
    engine = Engine(MODEL)
    looping, healthy = engine.start([LOOPING, without_guard(LOOPING)])
    for _ in range(17):
        assert engine.step().ended == ()

    engine.drop([looping])

    assert engine.num_segments == 1
    ended = [found.handle for _ in range(60) if engine.num_segments for found in engine.step().ended]
    assert ended == [healthy]


def test_attention_belongs_to_the_search_that_is_returned() -> None:
    ended = decode(replace(LOOPING, wants_attention=True))[0]

    attention = ended.hypotheses[0].attention
    assert attention is not None
    assert attention.shape[2:] == (len(ended.hypotheses[0].token_ids), len(LOOPING.source_ids))
