"""A hypothesis depends on its segment alone, whichever segments join, end or are cancelled in its batch."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_service.datatypes import SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.beam_state import bound_penalty, score
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import RunningBatch, check_segment
from tests.batch_decoding import decode_all
from tests.fakes import EOS, FIRST_WORD, FaultyToyModel

MODEL = FaultyToyModel(eos_bias=0.5, placeholders=(FIRST_WORD + 3,))
WORDS = st.integers(FIRST_WORD, FIRST_WORD + 4)


@dataclass(frozen=True)
class Visit:
    """A segment that joins at one step and may be cancelled some steps later."""

    segment: Segment
    joins_at: int
    stays: int | None


SAMPLINGS = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 10),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    seed=st.integers(0, 3),
)


@st.composite
def searches(draw: st.DrawFn) -> SearchConfig:
    """Return any combination of options that allows at least one token in each step."""
    beam_size = draw(st.integers(1, 6))
    longest = draw(st.integers(1, 14))
    sampling = draw(st.none() | SAMPLINGS)
    return SearchConfig(
        beam_size=beam_size,
        num_hypotheses=beam_size if sampling else draw(st.integers(1, beam_size)),
        length_penalty=draw(st.sampled_from([-0.5, 0.0, 0.6, 1.2])),
        min_target_tokens=draw(st.integers(0, 4)),
        max_target_tokens=longest,
        target_prefix=tuple(draw(st.lists(WORDS, max_size=min(longest - 1, 4)))),
        suppressed_tokens=draw(st.frozensets(WORDS, max_size=2)),
        no_repeat_ngram_size=draw(st.sampled_from([0, 2, 3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 5.0])),
        coverage_penalty=draw(st.sampled_from([0.0, 0.4])),
        sampling=sampling,
        early_stopping=draw(st.booleans()),
        repetition_guard=sampling is None and draw(st.booleans()),
    )


SEGMENTS = st.builds(
    Segment,
    source_ids=st.lists(WORDS, max_size=12).map(lambda ids: (*ids, EOS)),
    search=searches(),
    wants_attention=st.booleans(),
)
VISITS = st.builds(Visit, segment=SEGMENTS, joins_at=st.integers(0, 12), stays=st.none() | st.integers(1, 5))


@cache
def decode_alone(segment: Segment) -> EndedSegment:
    check_segment(segment, MODEL.limits)
    return decode_all(MODEL, [segment])[0]


def decode_together(visits: list[Visit]) -> dict[int, EndedSegment]:
    """Decode the visits in one batch; return the results by index of the visit."""
    batch, step = RunningBatch(MODEL), 0
    present: dict[int, int] = {}  # index of the visit, by segment id
    results = {}
    while batch.num_segments or step <= max(visit.joins_at for visit in visits):
        joining = [index for index, visit in enumerate(visits) if visit.joins_at == step]
        if joining:
            present |= zip(batch.start([visits[index].segment for index in joining]), joining, strict=True)
        step += 1
        for ended in batch.step().ended if batch.num_segments else ():
            results[present.pop(ended.segment_id)] = ended
        leaving = [segment_id for segment_id, index in present.items() if is_cancelled(visits[index], step)]
        batch.drop(leaving)
        for segment_id in leaving:
            del present[segment_id]
    return results


def assert_same(one: EndedSegment, other: EndedSegment) -> None:
    """Compare all fields except the id, bit for bit; the equality of hypotheses ignores attention."""
    assert replace(one, segment_id=0) == replace(other, segment_id=0)
    for first, second in zip(one.hypotheses, other.hypotheses, strict=True):
        assert (first.attention is None) == (second.attention is None)
        if first.attention is not None:
            np.testing.assert_array_equal(first.attention, second.attention)


def is_cancelled(visit: Visit, step: int) -> bool:
    return visit.stays is not None and step - visit.joins_at >= visit.stays


@settings(max_examples=50, deadline=None)
@given(st.lists(VISITS, min_size=1, max_size=8))
def test_hypothesis_does_not_depend_on_its_batch(visits: list[Visit]) -> None:
    results = decode_together(visits)

    for index, visit in enumerate(visits):
        alone = decode_alone(visit.segment)
        if index in results:
            assert_same(results[index], alone)
        else:
            assert visit.stays is not None
            assert visit.stays < alone.num_steps


@settings(max_examples=50, deadline=None)
@given(SEGMENTS)
def test_search_returns_one_to_num_hypotheses(segment: Segment) -> None:
    ended, search = decode_alone(segment), segment.search

    assert 1 <= len(ended.hypotheses) <= search.num_hypotheses
    assert 1 <= ended.num_steps <= search.max_target_tokens * (1 if ended.degeneration is None else 2)
    for hypothesis in ended.hypotheses:
        assert len(hypothesis.token_ids) == len(hypothesis.token_log_probs) <= search.max_target_tokens
        assert hypothesis.is_finished == (hypothesis.token_ids[-1] == EOS)
        assert hypothesis.token_ids[: len(search.target_prefix)] == search.target_prefix
        assert not search.suppressed_tokens & set(hypothesis.token_ids[len(search.target_prefix) :])
        assert hypothesis.log_prob == pytest.approx(sum(hypothesis.token_log_probs), rel=1e-5)
        assert (hypothesis.attention is not None) == segment.wants_attention


@given(searches(), st.floats(-50, 0), st.data())
def test_live_hypothesis_never_scores_above_its_bound(
    search: SearchConfig, log_prob: float, data: st.DataObject
) -> None:
    shortest = min(max(search.min_target_tokens, len(search.target_prefix)) + 1, search.max_target_tokens)
    length = data.draw(st.integers(shortest, search.max_target_tokens))
    later_log_prob = log_prob - data.draw(st.floats(0, 50))

    final = score(later_log_prob, length=length, alpha=search.length_penalty)

    assert final <= log_prob / bound_penalty(search)
