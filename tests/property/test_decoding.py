"""A hypothesis depends on its segment alone: not on neighbours, arrival order or who is cancelled."""

from dataclasses import dataclass
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from service.datatypes import Hypothesis, SearchConfig, Segment
from service.decoding.engine import Engine
from service.decoding.scoring import bound_penalty, score
from tests.fakes import EOS, FIRST_WORD, ToyModel

MODEL = ToyModel(eos_bias=0.5)


@dataclass(frozen=True)
class Visit:
    """A segment that joins at one step and may be cancelled some steps later."""

    segment: Segment
    joins_at: int
    stays: int | None


@st.composite
def searches(draw: st.DrawFn) -> SearchConfig:
    beam_size = draw(st.integers(1, 6))
    return SearchConfig(
        beam_size=beam_size,
        num_hypotheses=draw(st.integers(1, beam_size)),
        length_penalty_alpha=draw(st.sampled_from([-0.5, 0.0, 0.6, 1.2])),
        min_target_tokens=draw(st.integers(0, 4)),
        max_target_tokens=draw(st.integers(1, 14)),
    )


SEGMENTS = st.builds(
    Segment,
    source_ids=st.lists(st.integers(FIRST_WORD, FIRST_WORD + 4), max_size=3).map(lambda ids: (*ids, EOS)),
    search=searches(),
)
VISITS = st.builds(Visit, segment=SEGMENTS, joins_at=st.integers(0, 12), stays=st.none() | st.integers(1, 5))


@cache
def decode_alone(segment: Segment) -> tuple[tuple[Hypothesis, ...], int]:
    engine = Engine(MODEL)
    engine.start([segment])
    while True:
        if ended := engine.step().ended:
            return ended[0].hypotheses, ended[0].num_steps


def decode_together(visits: list[Visit]) -> dict[int, tuple[tuple[Hypothesis, ...], int]]:
    """Run the visits through one engine; return the answers by index of the visit."""
    engine, step = Engine(MODEL), 0
    present: dict[int, int] = {}  # handle -> index of the visit
    answers = {}
    while engine.num_segments or step <= max(visit.joins_at for visit in visits):
        joining = [index for index, visit in enumerate(visits) if visit.joins_at == step]
        if joining:
            present |= zip(engine.start([visits[index].segment for index in joining]), joining, strict=True)
        step += 1
        for ended in engine.step().ended if engine.num_segments else ():
            answers[present.pop(ended.handle)] = ended.hypotheses, ended.num_steps
        leaving = [handle for handle, index in present.items() if is_cancelled(visits[index], step)]
        engine.drop(leaving)
        for handle in leaving:
            del present[handle]
    return answers


def is_cancelled(visit: Visit, step: int) -> bool:
    return visit.stays is not None and step - visit.joins_at >= visit.stays


@settings(max_examples=150, deadline=None)
@given(st.lists(VISITS, min_size=1, max_size=8))
def test_a_hypothesis_does_not_depend_on_its_batch(visits: list[Visit]) -> None:
    answers = decode_together(visits)

    for index, visit in enumerate(visits):
        alone = decode_alone(visit.segment)
        if index in answers:
            assert answers[index] == alone
        else:
            assert visit.stays is not None
            assert visit.stays < alone[1]


@settings(max_examples=150, deadline=None)
@given(SEGMENTS)
def test_every_search_returns_between_one_and_the_hypotheses_asked_for(segment: Segment) -> None:
    hypotheses, num_steps = decode_alone(segment)

    assert 1 <= len(hypotheses) <= segment.search.num_hypotheses
    assert 1 <= num_steps <= segment.search.max_target_tokens
    for hypothesis in hypotheses:
        assert len(hypothesis.token_ids) == len(hypothesis.token_log_probs) <= segment.search.max_target_tokens
        assert hypothesis.is_finished == (hypothesis.token_ids[-1] == EOS)


@given(searches(), st.floats(-50, 0), st.data())
def test_no_continuation_of_a_live_hypothesis_scores_above_its_bound(
    search: SearchConfig, log_prob: float, data: st.DataObject
) -> None:
    shortest = min(search.min_target_tokens + 1, search.max_target_tokens)
    length = data.draw(st.integers(shortest, search.max_target_tokens))
    later_log_prob = log_prob - data.draw(st.floats(0, 50))

    final = score(later_log_prob, length=length, alpha=search.length_penalty_alpha)

    assert final <= log_prob / bound_penalty(search)
